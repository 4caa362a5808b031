"""What a process that plays real streams may do instead; called as `streams.on_gpu:play`."""


def answer(variant: str, source: str | None, device: str, repetitions: int) -> dict[str, object]:
    return {"device": device, "repetitions": repetitions, "different": 2, "first": f"{variant} of {source}"}
