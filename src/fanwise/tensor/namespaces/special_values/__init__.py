"""What functions give at zeros, infinities and NaN, for engines that give something else than the standard says."""
