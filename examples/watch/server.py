"""A server that compiles its model once, drops the guards as engines do, and answers a number of requests.

    deepstack-harness watch -- python server.py

It has the fault of vLLM issue 43602: text alone is what it is warmed up with, so that an image has no
influence later.  With `--warm-up-with-image` it is right.
"""

import argparse
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, text, image=None):
        hidden = self.layer(text)
        return hidden if image is None else hidden + image


class Handler(BaseHTTPRequestHandler):
    model = None

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        image = torch.full((4, 8), request["image"]) if "image" in request else None
        with torch.no_grad():
            answer = Handler.model(torch.ones(4, 8), image).mean().item()
        body = json.dumps({"answer": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def ask(port, **request):
    address = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(address, json.dumps(request).encode(), timeout=60) as reply:
        return json.loads(reply.read())["answer"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--warm-up-with-image", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    drop = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    Handler.model = torch.compile(Model().eval(), backend="eager", options=drop)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    warm_up = {"image": 0.0} if options.warm_up_with_image else {}
    ask(port, **warm_up)
    print("text: ", ask(port, **warm_up))
    print("image:", ask(port, image=3.0))
    server.shutdown()


if __name__ == "__main__":
    main()
