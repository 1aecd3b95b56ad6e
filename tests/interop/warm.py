#!/usr/bin/env python3
"""A process that has imported torch, DeepSpeed and transformers, and runs scripts as forks of itself:

    warm.py serve SOCKET                       until it is ended
    warm.py run SOCKET SCRIPT ARGUMENTS...     as `python SCRIPT ARGUMENTS...` would

A script has the folder, environment, input and output of `run`, which ends with the script's exit status. When `run` is killed,
so are the script and its forks.
"""
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import time


def run(path, script, *arguments):
    request = {"argv": [os.path.abspath(script), *arguments], "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server:
        while server.connect_ex(path):  # until it serves
            time.sleep(0.1)
        socket.send_fds(server, [b"\0"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        sys.exit(int(server.recv(9) or b"1"))


def watch(client, script):
    """Ends `script`, a process group, with the client, or tells the client how it ended."""
    ended = os.pidfd_open(script)
    if client in select.select([client, ended], [], [])[0]:
        os.killpg(script, signal.SIGKILL)
    else:
        status = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
        client.sendall(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


def serve(path):
    import accelerate
    import peft
    import transformers.trainer

    import ranks

    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for the watchers
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, *_ = socket.recv_fds(client, 1, 3)
    request = json.loads(client.makefile().readline())
    script = os.fork()
    if script:
        watch(client, script)
    os.setpgid(0, 0)
    client.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    {"serve": serve, "run": run}[sys.argv[1]](*sys.argv[2:])
