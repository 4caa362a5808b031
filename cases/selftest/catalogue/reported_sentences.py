"""Sentences of users, each from the issue or pull request that is named, and the incident that it is about.

Titles are cut to a few words or told in other words.  `WRITTEN_FIRST` was written before the search and the
catalogue's symptoms were, `WRITTEN_LAST` after both.
"""

WRITTEN_FIRST = (
    (
        "vllm 41485",
        "ValueError: Requested more deepstack tokens than available in buffer: num_tokens=16",
        "41485",
    ),
    ("vllm-omni 3257", "Qwen3-VL AWQ judge server crashes, num_tokens=320 > 309, EngineDeadError", "41485"),
    (
        "vllm 53516",
        "removing the early return costs 27 points of people detection under torch.compile",
        "53516",
    ),
    ("vllm-omni 3885", "Qwen3-Omni accuracy degradation under torch.compile", "43602"),
    ("vllm 35917", "VLMs see blank images when CUDA graph is enabled, eager mode works fine", "35917"),
    ("sglang 18098", "shape error in qwen3-vl moe when using deepep", "18098"),
    ("vllm 49094", "decode slowdown in compiled mode, 100% SM utilization", "40917"),
    (
        "vllm 50891",
        "image:0 and image:1 runs collide and crash: 'NoneType' object has no attribute 'size'",
        "50891",
    ),
    ("vllm-omni 128", "online serving fails for high-resolution videos", "198"),
    ("FastDeploy 5962", "after a long multimodal request all later requests repeat and are garbled", "5962"),
)
