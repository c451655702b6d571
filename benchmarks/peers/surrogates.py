# mypy: ignore-errors
# The reason: onnxruntime lives in an environment of its own, which the type checker does not see.
"""Surrogates of YAHPO Gym (Pfisterer et al., AutoML 2022), in a process of its own: a line in, a line out.

    arguments  the folder of a surrogate: model.onnx, encoding.json
    in         a list of configurations
    out        a list of targets for each: acc, bac, auc, brier, f1, logloss, timetrain, timepredict, memory

Hyperparameters that do not exist are encoded as YAHPO Gym encodes them: 0 for numbers, "#na#" for categories.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

# Columns of the models' inputs, from YAHPO Gym 1.0.2, yahpo_gym/benchmarks/rbv2.py.
NUMBERS = {
    "rbv2_rpart": ["cp", "maxdepth", "minbucket", "minsplit", "trainsize", "repl"],
    "rbv2_xgboost": [
        *["nrounds", "eta", "gamma", "lambda", "alpha", "subsample", "max_depth", "min_child_weight"],
        *["colsample_bytree", "colsample_bylevel", "rate_drop", "skip_drop", "trainsize", "repl"],
    ],
}
CATEGORIES = {
    "rbv2_rpart": ["task_id", "num.impute.selected.cpo"],
    "rbv2_xgboost": ["task_id", "booster", "num.impute.selected.cpo"],
}


def main():
    folder = Path(sys.argv[1])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    encoding = json.loads((folder / "encoding.json").read_text())
    numbers, categories = NUMBERS[folder.name], CATEGORIES[folder.name]
    for line in sys.stdin:
        configs = json.loads(line)
        x_cat = [[encoding[name][config.get(name, "#na#")] for name in categories] for config in configs]
        x_cont = [[config.get(name, 0) for name in numbers] for config in configs]
        inputs = {"x_cat": np.array(x_cat, np.int32), "x_cont": np.array(x_cont, np.float32)}
        print(json.dumps(session.run(["output"], inputs)[0].tolist()), flush=True)


if __name__ == "__main__":
    main()
