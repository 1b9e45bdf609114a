"""moto's S3 service as a process, with puts one at a time.

moto looks for the key of an If-None-Match and stores the object in two steps: of two puts at once, both could win. A real
service decides once.
"""

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_put, _one = S3Response.put_object, threading.Lock()


def put_object(self: S3Response) -> Any:
    with _one:
        return _put(self)


if __name__ == "__main__":
    S3Response.put_object = put_object  # type: ignore[method-assign]
    main()
