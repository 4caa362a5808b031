"""Sentences of users, each from the issue or pull request that is named, and the incident that it is about.

Titles are cut to a few words or reworded.  `WRITTEN_FIRST` was written before the search and the
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

WRITTEN_LAST = (
    (
        "sglang 16785",
        "unnecessary TorchDynamo recompilations at runtime when text and images are mixed",
        "16785",
    ),
    ("sglang 33726", "breakable CUDA graph replay behaves like a run with DeepStack set to zero", "33726"),
    ("mlx-vlm 2296", "Qwen3-VL batched chunked prefill mixes features from different rows", "2296"),
    ("vllm-ascend 7565", "Qwen3-VL with Flash Comm V1 enabled: shape mismatch on add, TP > 1", "18098"),
    ("ms-swift 6477", "Qwen3-VL-8B SFT with sequence parallelism raises an error on rank 1", "6514"),
    ("vllm 39669", "all Gemma 4 models crash with --pipeline-parallel-size > 1 during profiling", "40786"),
    ("tpu-inference 2673", "AttributeError during text-only decode steps on TPU, Qwen3-VL-235B", "2673"),
    (
        "vllm 44384",
        "Qwen3 deepstack device mismatch: CPU float32 tensors while the model is on CUDA",
        "44384",
    ),
    ("onnxruntime-genai 2513", "Qwen3-VL silently drops DeepStack features, OCR far below PyTorch", "1635"),
    ("Qwen3-VL 1576", "Qwen3-VL performance on a grounding task is extremely poor", "26626"),
)
