"""Runs `transformers serve` for one model, with what a batch expects of a server and that one leaves out (seen in
release 5.19): the model's name in `/v1/models`, and a refusal of a prompt that is empty or too long, which it answers
with 500 and with noise.

Its source is given to an interpreter of the host (`python -c`), so it imports nothing of this package. Arguments: the
model's folder, and the words of `transformers serve`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

PATHS = ("/v1/completions", "/v1/chat/completions")
BODY_LIMIT = 64 << 20
DEFAULT_TOKENS = 16  # of an answer, as OpenAI's interface has it

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Pinned:
    """An ASGI application around that of `transformers serve`."""

    def __init__(self, app: Any, model: str, longest: int, tokens_of: Callable[[dict[str, Any]], int]) -> None:
        """`longest`: tokens of a prompt and its answer together; 0 if the model names no number."""
        self._app, self._model, self._longest, self._tokens_of = app, model, longest, tokens_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == "/v1/models":
            listed = {"id": self._model, "object": "model", "owned_by": "transformers", "max_model_len": self._longest}
            await _answer(send, 200, {"object": "list", "data": [listed]})
        elif scope["path"] in PATHS:
            await self._checked(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more and len(body) <= BODY_LIMIT:
            part = await receive()
            if part["type"] != "http.request":  # the client is gone
                return
            body, more = body + part.get("body", b""), part.get("more_body", False)
        if wrong := "the request has more than 64 MiB" if more else self._wrong_with(body):
            await _answer(send, 400, {"error": {"message": wrong, "type": "BadRequestError", "code": 400}})
            return
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> dict[str, Any]:
            return pending.pop() if pending else await receive()

        await self._app(scope, again, send)

    def _wrong_with(self, body: bytes) -> str:
        """Return why a request is refused; "" if the server itself decides."""
        try:
            asked = json.loads(body)
            tokens = self._tokens_of(asked)
            wanted = int(asked.get("max_tokens") or asked.get("max_completion_tokens") or DEFAULT_TOKENS)
        except Exception:  # the server says it in its own words
            return ""
        if not tokens:
            return "the prompt is empty"
        if self._longest and tokens + wanted > self._longest:
            return (
                f"This model's maximum context length is {self._longest} tokens, and this prompt has {tokens} and asks "
                f"for {wanted} more"
            )
        return ""


async def _answer(send: Send, status: int, told: dict[str, Any]) -> None:
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    import uvicorn
    from transformers import AutoConfig, AutoTokenizer
    from transformers.cli.transformers import main as transformers

    model = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = AutoConfig.from_pretrained(model)
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or 0

    def tokens_of(asked: dict[str, Any]) -> int:
        if "messages" in asked:
            made = tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True, tokenize=False)
            return len(tokenizer(made)["input_ids"])
        return len(tokenizer(asked["prompt"])["input_ids"])

    class Config(uvicorn.Config):
        def __init__(self, app: Any, **given: Any) -> None:
            super().__init__(Pinned(app, model, longest, tokens_of), **given)

    vars(uvicorn)["Config"] = Config  # which it looks up when it starts
    sys.argv = ["transformers", "serve", model, *sys.argv[2:]]
    transformers()


if __name__ == "__main__":
    main()
