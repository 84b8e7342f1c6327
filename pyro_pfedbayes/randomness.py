"""Stateless streams of random numbers, each named by a seed and a few keys.

Everything random in round t for client i comes from ``generator(seed, "noise", t, i)`` or the like.
A stream depends only on its name: never on what was drawn before it, nor on who else takes part. So
no generator has to be checkpointed, and a resumed run equals one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import operator

import torch

from pyro_pfedbayes.errors import UserError


def seed_for(seed: int, *keys: int | str) -> int:
    """Derive the seed of the stream that is named by ``seed`` and ``keys``.

    The derivation is SHA-256 of an encoding in which different names never meet: ``1`` differs from
    ``"1"``, and ``("a", "b")`` from ``("ab",)``. It is the same on all machines, in all processes.

    It lies in [0, 2^63); ``seed`` is that of the whole run.

    Example:
        >>> seed_for(0, "noise", 3, 7) == seed_for(0, "noise", 3, 7)
        True
        >>> seed_for(0, "noise", 3, 7) == seed_for(0, "noise", 7, 3)
        False
    """
    digest = hashlib.sha256()
    digest.update(_encode(_integer(seed, "seed")))
    for position, key in enumerate(keys):
        value = key if isinstance(key, str) else _integer(key, f"stream key {position}")
        digest.update(_encode(value))
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def generator(seed: int, *keys: int | str, device: str | torch.device = "cpu") -> torch.Generator:
    """Make a fresh generator at the start of the stream that is named by ``seed`` and ``keys``.

    The same name gives the same numbers on one kind of device; a CPU and a CUDA generator differ.
    PyTorch's CPU generator uses only the low 32 bits of a seed, so among a million streams on a CPU
    about a hundred pairs coincide: harmless for noise, but not for secrets.

    Numbers must be drawn into tensors on ``device``.

    Example:
        >>> a = torch.randn(2, generator=generator(0, "noise", 3, 7))
        >>> b = torch.randn(2, generator=generator(0, "noise", 3, 7))
        >>> torch.equal(a, b)
        True
    """
    return torch.Generator(device=device).manual_seed(seed_for(seed, *keys))


def _integer(value: object, what: str) -> int:
    """An integer (NumPy's and one-element integer tensors too) as a plain ``int``."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # TypeError is handled below
    except TypeError:
        right = "an integer" if what == "seed" else "an integer or a string"
        raise UserError(f"{what} is {value!r}: give {right}") from None


def _encode(value: int | str) -> bytes:
    """Encode a key with its type and length, so that no two sequences of keys share an encoding."""
    tag, body = (b"s", value.encode()) if isinstance(value, str) else (b"i", str(value).encode())
    return tag + len(body).to_bytes(8, "big") + body
