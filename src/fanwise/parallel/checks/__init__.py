"""What is wrong, and what would make the result depend on the devices: said, or refused, before it spoils a training.

checking                  models, optimizers and options, before the first step
parts                     what has come to a model since its step was made
outside                   models from outside of the training function
misuse                    samplers, loaders and optimizers' own updates that would part the processes
comparing, checksums      what processes compare; checksums of batches, modules and settings
verifying                 of a torch model; and a shard that is executed twice
agreement (quiet)         what differs first between them
traces                    what a loss leaves behind outside of modules
"""
