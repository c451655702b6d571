"""What torch, NumPy, JAX and TensorFlow call what has another name here.

For messages only: whoever writes `ft.cat(...)` is told of `concat(arrays, axis=0)`. A key is their name, without its
module; a value is what to write here: it begins with a name of `fanwise.tensor`, or of Python where that is enough.
"""

# Of functions with the same arguments: ours, and what others call it.
_RENAMED = {
    "abs": ("absolute", "fabs"),
    **{f"a{name}": (f"arc{name}",) for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    "astype": ("cast",),
    "bitwise_invert": ("bitwise_not",),
    "bitwise_left_shift": ("left_shift",),
    "bitwise_right_shift": ("right_shift",),
    "clip": ("clamp",),
    "conj": ("conjugate",),
    "divide": ("div", "true_divide"),
    "equal": ("eq",),
    "greater": ("gt",),
    "greater_equal": ("ge",),
    "less": ("lt",),
    "less_equal": ("le",),
    "matmul": ("mm", "bmm"),
    "max": ("amax", "reduce_max"),
    "mean": ("reduce_mean",),
    "min": ("amin", "reduce_min"),
    "multiply": ("mul",),
    "negative": ("neg",),
    "not_equal": ("ne",),
    "pow": ("power",),
    "prod": ("reduce_prod",),
    "remainder": ("mod",),
    "size": ("numel",),
    "stop_gradient": ("detach",),
    "subtract": ("sub",),
    "sum": ("reduce_sum",),
    "to_numpy": ("numpy",),
}
# Of what is done in another way: what others call it, by what to write here.
_DONE_SO = {
    "asarray(values)": ("array", "as_tensor", "constant", "convert_to_tensor", "tensor"),
    "arange(start, stop)": ("range",),
    "at(x)[index].set(value)": ("index_update", "scatter", "tensor_scatter_nd_update"),
    "concat(arrays, axis=0)": ("cat", "concatenate", "vstack"),
    "concat(arrays, axis=1)": ("hstack",),
    "convert(x, engine)": ("as_numpy", "from_torch"),
    "cumulative_prod(x, axis=0)": ("cumprod",),
    "cumulative_sum(x, axis=0)": ("cumsum",),
    "expand_dims(x, axis=0)": ("unsqueeze",),
    "float16": ("half",),
    "float32": ("float",),
    "float64": ("double",),
    "full(shape, value)": ("fill",),
    "int64": ("long",),
    "integers(Key(seed), shape, low, high)": ("randint", "random_integers"),
    "Key(seed)": ("default_rng", "Generator", "manual_seed", "PRNGKey", "seed", "set_seed"),
    "linalg.det(x)": ("det",),
    "linalg.inv(x)": ("inv", "inverse"),
    "linalg.outer(x, y)": ("ger", "outer"),
    "linalg.trace(x)": ("trace",),
    "linalg.vector_norm(x)": ("norm",),
    "normal(Key(seed), shape)": ("randn", "random_normal", "standard_normal"),
    "permutation(Key(seed), x)": ("randperm", "shuffle"),
    "permute_dims(x, axes)": ("permute", "swapaxes", "transpose"),
    "reshape(x, shape)": ("flatten", "ravel", "view"),
    "State(x)": ("Variable",),
    "take(x, indices, axis=0)": ("index_select",),
    "take_along_axis(x, indices)": ("gather",),
    "uniform(Key(seed), shape)": ("rand", "random_uniform"),
    "value_and_grad(function)": ("backward", "GradientTape"),
}

OTHER_NAMES = {theirs: ours for table in (_RENAMED, _DONE_SO) for ours, others in table.items() for theirs in others}
