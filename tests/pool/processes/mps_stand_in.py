"""Stands in for nvidia-cuda-mps-control: a control socket, a server process for the first client, commands on stdin.

    -f          listen in the pipe folder until a client says "quit"
    (nothing)   send each line of stdin to the daemon and print its answers: quit, get_server_list, ps

A client connects to `control` and sends "client PID". Like the real server, the stand-in ends only without clients.
FANWISE_TEST_MPS makes it fail ("fail"), ignore its socket ("deaf") or ignore "quit" ("stubborn").
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys

FOLDER, MODE = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ.get("FANWISE_TEST_MPS", "")
SERVER = "import signal; signal.pause()"


def log(line: str) -> None:
    with open(os.path.join(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log"), "a") as file:
        file.write(f"{line}\n")


def serve() -> None:
    log(f"daemon {os.getpid()} of GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    if MODE == "fail":
        log("Failed to start: insufficient permissions")
        sys.exit(1)
    if MODE == "deaf":
        signal.pause()
    server: subprocess.Popen[bytes] | None = None
    clients: set[int] = set()
    with socket.socket(socket.AF_UNIX) as listener:
        for name in ("control_lock", "control_privileged"):
            open(os.path.join(FOLDER, name), "w").close()
        listener.bind(os.path.join(FOLDER, "control"))
        listener.listen(100)
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                word, _, argument = connection.recv(100).decode().strip().partition(" ")
                if word == "client":
                    if server is None:
                        server = subprocess.Popen([sys.executable, "-SEc", SERVER], start_new_session=True)
                    clients.add(int(argument))
                    connection.sendall(str(server.pid).encode())
                elif word == "get_server_list":
                    connection.sendall(str(server.pid if server else "").encode())
                elif word == "ps":
                    connection.sendall(
                        " ".join(str(pid) for pid in sorted(clients) if os.path.exists(f"/proc/{pid}")).encode()
                    )
                elif word == "quit" and MODE != "stubborn":
                    wait_for(clients)
                    log("quit")
                    if server is not None:
                        server.terminate()
                        server.wait()
                    os.unlink(os.path.join(FOLDER, "control"))
                    return


def wait_for(clients: set[int]) -> None:
    for pid in clients:
        with contextlib.suppress(ProcessLookupError):
            select.select([os.pidfd_open(pid)], [], [])


def send(line: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.path.join(FOLDER, "control"))
        connection.sendall(line.encode())
        print(connection.recv(1000).decode(), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["-f"]:
        serve()
    for line in sys.stdin if sys.argv[1:] == [] else ():
        send(line)
