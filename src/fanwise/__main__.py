"""`python -m fanwise`: the same as the command `fanwise`, for where that is not on the path."""

from fanwise.cli import main

if __name__ == "__main__":
    main()
