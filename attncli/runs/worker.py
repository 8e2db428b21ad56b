"""A worker process: python -m attncli.batch.executors.worker FD, started by the executor `workers`.

It receives the function, then chunks; it sends "ready", then the result of each chunk.
"""

import os
import sys
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from traceback import print_exc
from typing import Any

from attncli.runs.driver import Died, attempted


def _receive(pipe: "Connection[Any, Any]", messages: "SimpleQueue[Any]") -> None:
    """Queue everything that is sent; when the pipe closes this process ends, whatever it is computing."""
    try:
        while True:
            messages.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # the function's module cannot be imported here
        print_exc()
        os._exit(1)


def main(fd: int) -> None:
    """Work until the pipe is closed."""
    pipe: Connection[Any, Any] = Connection(fd)
    messages: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    work = messages.get()
    pipe.send("ready")
    while True:
        chunk = messages.get()
        try:
            pipe.send(attempted(work, chunk))
        except OSError:
            return  # the driver has ended
        except Exception as error:  # a result that cannot be sent
            pipe.send(Died.of(error))


if __name__ == "__main__":
    main(int(sys.argv[1]))
