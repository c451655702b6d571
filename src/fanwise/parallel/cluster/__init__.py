"""A run whose processes are jobs of a pool on a cluster: `fanwise.run(train, devices=4, pool=Pool(ray=...))`.

    supervisor    in the program: submits a job for each process, tells them who is where, and takes what they say
    rank          in each of these jobs: links to all others (hosts/), then the training function
    talking       what a rank and the supervisor say, as reports of the job

What they exchange, and what is done when one is lost, is that of processes which a launcher has started: see `hosts`.
"""
