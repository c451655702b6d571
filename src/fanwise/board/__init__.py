"""The board: experiments as web pages that follow what runs. Needs the extra `board`.

guard, callers                      who may
    thinning, columns, views            how much is shown; what is shown
    pacing                              how often
training_runs                       training runs on this machine
watching                            the experiments of a folder, read as their records grow
with_starlette, with_uvicorn        HTTP: routes, live events, commands; the server
page/                               what the browser gets: HTML, CSS and modules, as they are
"""
