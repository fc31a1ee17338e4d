"""Claims of the notes about parameters, bytes and number formats, each computed by this package."""

from __future__ import annotations

from fractions import Fraction

from roofline.accounting.activations import Kernels, layer_activations, model_activations
from roofline.accounting.answers.answer import number, size
from roofline.accounting.attention_work import doubled_pairs
from roofline.accounting.budget import largest_params
from roofline.accounting.claims.claim import Claim, compared
from roofline.accounting.config.config import ModelConfig
from roofline.accounting.config.file import load_preset, read_config
from roofline.accounting.flops import train_flops
from roofline.accounting.number_formats import FORMATS, scale_bytes, shown_in
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import RECIPES, bytes_per_param
from roofline.work import DTYPE_BITS, bytes_of

UNFUSED, FLASH = Kernels(is_flash=False, has_dropout=True), Kernels(has_dropout=True)


def format_claims() -> list[Claim]:
    """Return the claims about number formats."""
    half, tiny = FORMATS["fp16"], Fraction("1e-8")
    kept, bf16 = float(shown_in(Fraction("6e-5"), "fp16")), float(shown_in(tiny, "bf16"))
    digits, smallest = FORMATS["fp8e5m2"].decimal_digits, float(half.smallest_subnormal)
    wide = DTYPE_BITS["fp64"] / DTYPE_BITS["bf16"]
    fp4 = 8 * (bytes_of(1024, "nvfp4") + scale_bytes(1024, "nvfp4")) / 1024
    return [
        compared(
            "S2",
            "fp16 is 0 below",
            (6e-5, "~6e-5"),
            (smallest / 2, f"{smallest / 2:.2e}"),
            "2^-25; least value above 0: 2^-24",
            1,
            f"6e-5 is where digits begin to be lost: fp16(6e-5) = {kept:.4e}",
        ),
        compared("S3, S4", "fp16(1e-8)", (0, "may be 0; 0"), (float(shown_in(tiny, "fp16")), "always 0"), "nearest", 2),
        compared("S2", "bf16(1e-8)", (1e-8, "1.0000e-08"), (bf16, f"{bf16:.4e}"), "nearest of 8 bits", 5),
        compared("S2", "decimal digits of E5M2", (0.5, "~0.5"), (digits, f"{digits:.2f}"), "log10(2^3)", 1),
        compared("S2", "fp64 over bf16 in memory", (3, "triple"), (wide, f"{wide:g}x, 2x of fp32"), "64 / 16 bits", 1),
        compared("S1", "bits of an FP4 value", (4, "4"), (fp4, f"{fp4:g} with NVFP4 scales"), "4 + 8 / 16", 2),
    ]


def tensor_claims() -> list[Claim]:
    """Return the claims about single tensors and data files."""
    matrix = bytes_of(4 * 12288 * 12288, "fp32")
    tokens = 2.8e12 / 2
    vocabulary = load_preset("llama-3-8b").vocabulary
    return [
        compared(
            "S2, S4",
            "GPT-3's MLP matrix in fp32",
            (2.3e9, "2.3 GB"),
            (matrix, f"{size(matrix)} = {number(matrix / 2**30)} GiB"),
            "4 x 49,152 x 12,288",
            2,
            "2304 MiB over 1000 is neither",
        ),
        compared("S2", "[1024, 1024] in fp32", (4e6, "4 MB"), (bytes_of(2**20, "fp32"), "4.194 MB, 4 MiB"), "4 m n", 1),
        compared(
            "S2",
            "2.8 TB of tokens as an int32 file",
            (2.8e12, "2.8 TB"),
            (4 * tokens, size(4 * tokens)),
            "4 bytes a token",
            2,
            "1.4T tokens are 2.8 TB in uint16",
        ),
        compared(
            "S3",
            "uint16 holds every token",
            (vocabulary, "np.uint16"),
            (2**16, f"up to {2**16:,}"),
            "2^16",
            6,
            f"Llama 3 has {vocabulary:,}",
            depends="the vocabulary",
        ),
        _scores_claim(),
    ]


def _scores_claim() -> Claim:
    elements = 32 * 32 * doubled_pairs(2048, 2048, "full") // 2
    log_sums = 4 * 32 * 32 * 2048
    return compared(
        "S2",
        "scores of one layer, B 32, T 2048, 32 heads",
        (17.2e9, "17.2 GB"),
        (4 * elements, size(4 * elements)),
        "4 B a T^2",
        3,
        f"fp32 alone; bf16 {size(2 * elements)}, flash attention {size(log_sums)} of log-sum-exp",
        depends="dtype and kernel",
    )


def state_claims() -> list[Claim]:
    """Return the claims about bytes per parameter, and what fits."""
    sizes = {name: bytes_per_param(recipe, "adamw") for name, recipe in RECIPES.items()}
    fits = [largest_params(80e9, *case) for case in ((8, 16), (8, 12), (1, 12))]
    reasons = f"bf16 8, with fp32 moments 12, with a master copy {sizes['bf16-master']}, with fp32 gradients too 18"
    return [
        compared("S2-S4", "AdamW in fp32, bytes", (16, "16"), (sizes["fp32"], "16"), "4 + 4 + 8", 2),
        compared(
            "S0, S1",
            "AdamW in mixed precision, bytes",
            (12, "12"),
            (sizes["bf16-fp32-moments"], f"{min(sizes.values())} to {max(sizes.values())}"),
            "weight + gradient + master + moments",
            2,
            f"{reasons}; torch.optim.AdamW keeps bf16 moments of bf16 parameters: 8",
            depends="the recipe",
        ),
        compared(
            "S2",
            "weights in bf16, bytes per parameter",
            (8, "8"),
            (RECIPES["bf16"].weight_bytes, "2"),
            "16 / 8 bits",
            1,
            "8 is the whole state in pure bf16",
        ),
        compared("S4", "largest on 8 H100 at 16 bytes", (40e9, "~40B"), (fits[0], "40.0B"), "80e9 x 8 / 16", 2),
        compared(
            "S0",
            "largest on one H100 at 12 bytes",
            (53e9, "~53B"),
            (fits[2], f"{fits[2] / 1e9:.2f}B"),
            "80e9 / 12",
            2,
            f"{fits[1] / 1e9:.1f}B is what eight hold",
        ),
        compared("S2", "state of 70B in fp32", (1.12e12, "1,120 GB"), (70e9 * 16, size(70e9 * 16)), "16 N", 3),
    ]


def parameter_claims() -> list[Claim]:
    """Return the claims about counts of parameters."""
    small = _gpt(1024, 12, 16, 50257)
    blocks = count_parameters(small).matmul - 50257 * 1024
    embedding = count_parameters(small).components["embedding"]
    notes = load_preset("notes-1.28b")
    tied = count_parameters(notes).total
    untied = tied + notes.vocabulary * notes.width
    return [
        compared(
            "S2", "12 d^2 L at d 1024, L 12", (150.9e6, "150.9M"), (blocks, f"{blocks / 1e6:.1f}M"), "12 d^2 L", 4
        ),
        compared(
            "S2",
            "saved by tying V 50,257, d 1024",
            (53.6e6, "53.6M, 51.9M, 207 MB"),
            (embedding, f"{embedding / 1e6:.1f}M, {size(4 * embedding)}"),
            "V d",
            3,
            "three values in one line; the total of 204M has but one embedding already",
        ),
        compared(
            "S2",
            "d 2048, L 24, V 32,000",
            (1.4e9, "1.4B, later 1.28B"),
            (tied, f"{tied / 1e9:.3f}B tied, {untied / 1e9:.3f}B untied"),
            "12 d^2 L + V d",
            2,
        ),
    ]


def activation_claims() -> list[Claim]:
    """Return the claims about activations and checkpointing."""
    return [*_lesson_claims(), *_large_claims(), *_checkpoint_claims(), _toy_claim()]


def _lesson_claims() -> list[Claim]:
    config = load_preset("notes-1.28b")
    full = model_activations(config, 2048, 8, FLASH, "full")["checkpoints"]
    flash, unfused = (sum(model_activations(config, 2048, 8, kernels).values()) for kernels in (FLASH, UNFUSED))
    return [
        compared(
            "S2",
            "activations, B 8, T 2048, d 2048, L 24, none recomputed",
            (3.2e9, "3.2 GB"),
            (flash, f"{size(flash)} flash, {size(unfused)} unfused"),
            "s b h (34 + 5as/h) L",
            2,
            f"2 s b h L = {size(full)} is what full checkpointing keeps",
        )
    ]


def _large_claims() -> list[Claim]:
    config = _gpt(4096, 32, 32, 32000)
    full = model_activations(config, 2048, 8, FLASH, "full")["checkpoints"]
    flash, unfused = (sum(model_activations(config, 2048, 8, kernels).values()) for kernels in (FLASH, UNFUSED))
    saved = 1 - flash / unfused
    both = f"{size(unfused)} unfused, {size(flash)} flash"
    return [
        compared("S2", "activations, B 8, T 2048, d 4096, L 32", (320e9, "~320 GB"), (unfused, both), "34 + 5as/h", 2),
        compared("S2", "the same before checkpointing", (128e9, "128 GB"), (unfused, both), "34 + 5as/h", 2),
        compared("S2", "the same with checkpointing", (4e9, "4 GB"), (full, size(full)), "2 s b h L", 1),
        compared(
            "S2",
            "saved by flash attention",
            (0.6, "~60 %"),
            (saved, f"{100 * saved:.0f} %"),
            "(5as/h) / (34 + 5as/h)",
            1,
            "of this shape; 0 to 90 % by a s / h",
            depends="a s / h",
        ),
    ]


def saved_by_selective(sequence: int, width: int, heads: int) -> float:
    """Return the share of a layer's activations that selective recomputation saves: (5as/h) / (34 + 5as/h).

    Source: Korthikanti et al. (2022), table 2; 70 % of GPT-3 175B, 65 % of the 530B model.
    """
    scores = 5 * heads * sequence / width
    return scores / (34 + scores)


def _checkpoint_claims() -> list[Claim]:
    config = load_preset("gpt-3")
    none, full = (sum(model_activations(config, 2048, 1, UNFUSED, word).values()) for word in ("none", "full"))
    plain = train_flops(config, 2048, convention="gemm-full", recompute="full", is_flash=False)
    cost = plain.hardware_flops / plain.model_flops - 1
    cores = train_flops(config, 2048, convention="gemm-full", recompute="selective", is_flash=False)
    part, extra = saved_by_selective(2048, 12288, 96), cores.hardware_flops / cores.model_flops - 1
    return [
        compared(
            "S0",
            "checkpointing saves of GPT-3's activations",
            (0.5, "up to 50 %"),
            (1 - full / none, f"{100 * (1 - full / none):.0f} % full, {100 * part:.0f} % selective"),
            "1 - (2 s b h L + a layer) / all",
            1,
        ),
        compared(
            "S0",
            "and costs in compute",
            (0.2, "roughly 20 %"),
            (cost, f"{100 * cost:.0f} % full, {100 * extra:.1f} % selective"),
            "one forward pass of the layers, or of attention's own products",
            1,
            "Korthikanti et al. (2022) print 2.7 % for selective: their formula adds attention's backward pass too",
        ),
    ]


def _toy_claim() -> Claim:
    block = layer_activations(_gpt(4096, 1, 32, 32000), 2048, 1, Kernels())
    elements = sum(block.values()) / (2 * 2048 * 4096)
    return compared(
        "S4",
        "activations of a layer over B x D",
        (1, "1"),
        (elements, f"{elements:.1f} in a GPT block"),
        "16 and little more, flash, no dropout",
        1,
        "1 holds for the lecture's linear layers alone",
        depends="the layer",
    )


def _gpt(width: int, layers: int, heads: int, vocabulary: int) -> ModelConfig:
    """Return a GPT of the notes: no biases, no learned positions."""
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 2048, "vocab_size": vocabulary}
    return read_config({"model_type": "nanogpt", "has_positions": False, **sizes}, "the notes' model")
