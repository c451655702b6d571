"""Live web pages of experiments. Needs the extra `board`.

serving                       the listening socket, the token and the address of a board
guard                         access control
experiments                   the experiments of a folder, read as their records grow, and training runs
views                         the data of the pages, or samples of data that is too large for a page
with_starlette, with_uvicorn  routes, live events and commands; the HTTP server
page/                         HTML, CSS and JavaScript
"""
