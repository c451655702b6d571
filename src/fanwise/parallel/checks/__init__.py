"""What is wrong, and what would make the result depend on the devices: said, or refused, before it spoils a training.

checking                  models, optimizers and options, before the first step
parts                     what has come to a model since its step was made
misuse                    updates of optimizers beside a step
comparing, checksums      what processes compare; checksums of batches, modules and settings
verifying                 of a torch model; and a shard that is executed twice
agreement (quiet)         what differs first between them
"""
