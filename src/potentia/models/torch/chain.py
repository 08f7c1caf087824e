"""`LinearChain`: conditional random fields on chains, whose log-likelihood autograd can differentiate once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base.types import Bools, Ints, PotentiaError, check_choice, check_count, check_type, texts_of
from ...features.schemes import allowed_tags
from ...kernels import sequences as kernels
from ..chain_predict import LabelPath
from . import segments as segment_chains
from . import tensor_chain
from .indices import working_type
from .layer import tensor_like
from .padded import LogLikelihood, PaddedEmissions, refuse_bad, refuse_bad_sums
from .segments import TaggedSegment
from .tensor_chain import Chains

_REDUCTIONS = ("none", "sum", "mean", "token_mean")


class LinearChain(torch.nn.Module):
    r"""A linear-chain conditional random field: a drop-in for pytorch-crf's `CRF` whose loops over steps are compiled.

    .. math:: \log p(y \mid x) = \text{start}(y_1) + \sum_t \text{emission}_t(y_t)
        + \sum_t \text{transition}(y_t, y_{t+1}) + \text{end}(y_T) - \log Z

    Constructor, parameters, arguments and results are those of `torchcrf.CRF` 0.7.2, and its `state_dict` can be
    loaded. Masks must be on in a prefix of each sequence (there, others give wrong likelihoods).

    Args:
        num_tags: number of tags.
        batch_first: whether emissions are (batch, steps, tags) rather than (steps, batch, tags).
        tags: names of the tags, for `scheme`.
        scheme: "BIO", "BIOES" or "IOB1": tag sequences that the scheme does not know get probability zero.
        allowed: (num_tags, num_tags) of booleans: others than the transitions that are on get probability zero.
        backend: "kernels"; "tensor": PyTorch operations on any device; or "auto": kernels for tensors on the CPU.

    `segments`, where a method takes it, makes a semi-Markov chain: scores (batch, steps, longest, tags), with steps and
    batch as in emissions, of segments that begin at a token and hold 1, 2, ... tokens of one tag. They are added to the
    emissions of their tokens, and transitions join segments that follow each other. `sets`, of the shape of emissions,
    is on at the tags that each token may have.
    """

    def __init__(
        self,
        num_tags: int,
        batch_first: bool = False,
        *,
        tags: Sequence[str] | None = None,
        scheme: str | None = None,
        allowed: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        check_count("num_tags", num_tags, 1)
        if (tags is None) != (scheme is None):
            raise PotentiaError("tags and scheme belong together: give both or neither.")
        tags = None if tags is None else texts_of("tags", tags)
        if tags is not None and len(tags) != num_tags:
            raise PotentiaError(f"tags holds {len(tags)} names for num_tags={num_tags}.")
        super().__init__()
        check_choice("backend", backend, ("auto", "kernels", "tensor"))
        self.num_tags, self.batch_first, self.scheme, self.backend = num_tags, batch_first, scheme, backend
        self.start_transitions = torch.nn.Parameter(torch.empty(num_tags))
        self.end_transitions = torch.nn.Parameter(torch.empty(num_tags))
        self.transitions = torch.nn.Parameter(torch.empty(num_tags, num_tags))
        known = None if tags is None or scheme is None else allowed_tags(tags, scheme)
        forbidden = {
            name: None if known is None else torch.from_numpy(~getattr(known, name))
            for name in ("start", "transitions", "end")
        }
        if allowed is not None:
            on = torch.as_tensor(allowed)
            if on.dtype != torch.bool or tuple(on.shape) != (num_tags, num_tags):
                raise PotentiaError(f"allowed must be booleans of shape {(num_tags, num_tags)}, one per transition.")
            both = forbidden["transitions"]
            forbidden["transitions"] = ~on if both is None else ~on | both
        for name, mask in forbidden.items():
            # not saved: pytorch-crf's files have no such entry
            self.register_buffer(f"_forbidden_{name}", mask, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from [-0.1, 0.1]."""
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """The options."""
        return f"num_tags={self.num_tags}" + (f", scheme={self.scheme!r}" if self.scheme else "")

    def forward(
        self,
        emissions: Tensor,
        tags: Tensor,
        mask: Tensor | None = None,
        reduction: str = "sum",
        *,
        segments: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> Tensor:
        """log p(tags | emissions): of each sequence ("none"), "sum", "mean" over sequences, or "token_mean".

        Args:
            emissions: scores (steps, batch, tags), or (batch, steps, tags) with `batch_first`.
            tags: (steps, batch) or (batch, steps); what they are outside the mask does not matter. Booleans of the
                shape of emissions are sets of tags, of which every token has one: log p of all labellings in them.
            mask: of the shape of emissions without tags, on at each sequence's tokens; None for all.
            reduction: as above.
            segments: scores of segments; see the class.
            begins: of the shape of `mask`, on where segments begin; by default where the tag changes.
        """
        check_choice("reduction", reduction, _REDUCTIONS)
        sets = isinstance(tags, Tensor) and tags.dtype == torch.bool and tags.dim() == 3
        if segments is None and not sets and not self._uses_tensors(emissions):
            value, tokens = self._kernel_likelihoods(emissions, tags, mask, reduction != "none")
        else:
            c = self._chains(emissions, mask)
            wide = None if segments is None else self._segments(segments, emissions)
            if sets:
                score = self._log_partition(self._chains(self._given(emissions, tags), mask), wide)
            else:
                score = self._score(c, emissions, tags, mask, wide, begins)
            log_z = self._log_partition(c, wide)
            refuse_bad_sums(log_z, score)
            value = (score - log_z).to(torch.promote_types(emissions.dtype, self.transitions.dtype))
            tokens = c.mask.sum()
        if reduction == "none":
            return value
        if reduction == "mean":
            return value.mean()
        return value.sum() if reduction == "sum" else value.sum() / tokens

    def _score(self, c: Chains, emissions: Any, tags: Any, mask: Any, wide: Any, begins: Any) -> Tensor:
        """The score of the tags of each sequence, and of its segments if there are scores of these."""
        if not torch.compiler.is_compiling() and emissions.device.type != "meta":
            self._labels(emissions, tags, self._mask(emissions, mask))
        labels = tags.long() if self.batch_first else tags.long().T
        if wide is None:
            return tensor_chain.path_score(c, labels)
        return tensor_chain.segmentation_score(c, wide, labels, self._begins(begins, labels))

    @torch.compiler.disable
    def _kernel_likelihoods(
        self, emissions: Tensor, tags: Tensor, mask: Tensor | None, reduced: bool
    ) -> tuple[Tensor, Any]:
        """log p of the tags of each sequence, and the number of tokens."""
        on = self._mask(emissions, mask)
        labels, lengths, tables = self._labels(emissions, tags, on), on.sum(axis=1), self._transitions()
        sequences = PaddedEmissions(emissions, tables, lengths, self.batch_first)
        # sequences that are not reduced may be weighted differently
        eager = reduced and torch.is_grad_enabled()
        value: Tensor = LogLikelihood.apply(sequences, labels, eager, emissions, *tables)
        return value, int(lengths.sum())

    def decode(
        self,
        emissions: Tensor,
        mask: Tensor | None = None,
        *,
        sets: Tensor | None = None,
        segments: Tensor | None = None,
        padded: bool = False,
    ) -> Any:
        """The most likely tags of each sequence [Viterbi], as lists of the sequences' lengths.

        With `padded` a tensor (batch, steps) instead, -1 outside the mask.
        """
        given = self._given(emissions, sets)
        if segments is not None:
            tags = self._best_segments(given, segments, mask)[0]
        elif self._uses_tensors(given):
            best, score = tensor_chain.k_best_paths(self._chains(given, mask), 1)
            refuse_bad_sums(score[:, 0])
            tags = best[:, 0]
        else:
            tags = self._kernel_best(given, mask)
        if padded:
            return tags
        return [row[row >= 0].tolist() for row in tags]

    @torch.compiler.disable
    def _kernel_best(self, emissions: Tensor, mask: Tensor | None) -> Tensor:
        """The most likely tags by the kernels, (batch, steps), -1 outside the mask."""
        sequences = self._sequences(emissions, mask)
        labels, score = np.empty(sequences.shape, dtype=np.int64), np.empty(sequences.shape[0])
        kernels.best_labels(sequences.chains, labels, score)
        refuse_bad(score)
        labels[np.arange(labels.shape[1]) >= sequences.chains.length[:, None]] = -1
        return torch.from_numpy(labels).to(emissions.device)

    def _best_segments(self, emissions: Tensor, segments: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tags of the most likely segments, -1 outside the mask, and where they begin, both (batch, steps)."""
        c = self._chains(emissions, mask)
        wide, by_tensors = self._segments(segments, emissions), self._uses_tensors(emissions)
        tags, begins, score = segment_chains.best_segments(c, wide, by_tensors)
        refuse_bad_sums(score)
        return tags, begins

    def segment(self, emissions: Tensor, segments: Tensor, mask: Tensor | None = None) -> list[list[TaggedSegment]]:
        """The most likely segments of each sequence."""
        tags, begins = self._best_segments(emissions, segments, mask)
        every = []
        for row, first in zip(tags.tolist(), begins.tolist(), strict=True):
            n = sum(tag >= 0 for tag in row)
            starts = [t for t in range(n) if first[t]]
            every.append([TaggedSegment(a, b, row[a]) for a, b in zip(starts, [*starts[1:], n], strict=True)])
        return every

    @torch.compiler.disable
    def k_best(
        self, emissions: Tensor, k: int, mask: Tensor | None = None, *, sets: Tensor | None = None
    ) -> list[list[LabelPath]]:
        """The k most likely labellings of each sequence, best first; fewer where a sequence has fewer."""
        check_count("k", k, 1)
        given = self._given(emissions, sets)
        if self._uses_tensors(given):
            c = self._chains(given, mask)
            with torch.no_grad():
                tags, best = tensor_chain.k_best_paths(c, k)
                log_z = self._log_partition(c, None)
            refuse_bad_sums(log_z)
            labels, log_p = tags.cpu().numpy(), (best - log_z[:, None]).tolist()
            lengths = c.mask.sum(1).tolist()
        else:
            sequences = self._sequences(given, mask)
            total, (batch, steps) = sequences.log_partition(), sequences.shape
            labels, score = np.empty((batch, k, steps), dtype=np.int64), np.empty((batch, k))
            kernels.k_best_labels(sequences.chains, labels, score)
            log_p, lengths = (score - total[:, None]).tolist(), sequences.chains.length.tolist()
        return [
            [LabelPath(path[:n].tolist(), p) for path, p in zip(labels[i], log_p[i], strict=True) if p > -np.inf]
            for i, n in enumerate(lengths)
        ]

    def marginals(
        self,
        emissions: Tensor,
        mask: Tensor | None = None,
        *,
        sets: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """p(tag of each token | emissions) in the layout of emissions, zero outside the mask; without gradient.

        `CRFLayer` with `pt.Exact()` gives marginals of chains that can be differentiated.
        """
        given = self._given(emissions, sets)
        if segments is None and not self._uses_tensors(given):
            return self._kernel_marginals(given, mask)
        with torch.no_grad():
            c = self._chains(given, mask)
            if segments is None:
                mu = tensor_chain.marginals(c)
            else:
                wide = self._segments(segments, given)
                p = segment_chains.segment_marginals(c, wide, self._uses_tensors(given))
                mu = tensor_chain.token_marginals(p)
        refuse_bad_sums(mu.sum((1, 2)))
        return (mu if self.batch_first else mu.transpose(0, 1)).to(emissions.dtype)

    @torch.compiler.disable
    def _kernel_marginals(self, emissions: Tensor, mask: Tensor | None) -> Tensor:
        """Marginals of tokens by the kernels, as the gradient of log Z by emissions."""
        sequences = self._sequences(emissions, mask)
        return tensor_like(sequences.gradient(np.ones(sequences.shape[0]), None)[1][0], emissions)

    def pair_marginals(self, emissions: Tensor, mask: Tensor | None = None, *, sets: Tensor | None = None) -> Tensor:
        """p(tags of tokens t and t + 1), (steps - 1, batch, tags, tags) or with batches first; without gradient."""
        given = self._given(emissions, sets)
        with torch.no_grad():
            c = self._chains(given, mask)
            mu = segment_chains.pair_marginals(c, self._uses_tensors(given))
        return (mu if self.batch_first else mu.transpose(0, 1)).to(emissions.dtype)

    # -- inputs of the tensor operations

    def _uses_tensors(self, emissions: Any) -> bool:
        """Whether tensor operations are to be used: as `backend` says, or off the CPU."""
        if self.backend != "auto" or not isinstance(emissions, Tensor):
            return self.backend == "tensor"
        return emissions.device.type != "cpu"

    def _chains(self, emissions: Tensor, mask: Tensor | None) -> Chains:
        """Batch-first emissions of at least float32, zero in padding, with transitions and mask."""
        check_type("emissions", emissions, Tensor)
        if torch.compiler.is_compiling() or emissions.device.type == "meta":
            on = torch.ones(emissions.shape[:2], dtype=torch.bool, device=emissions.device) if mask is None else mask
            on = on.bool() if self.batch_first else on.bool().T
        else:
            on = torch.from_numpy(self._mask(emissions, mask)).to(emissions.device)
        scores = emissions if self.batch_first else emissions.transpose(0, 1)
        tables = self._transitions()
        dtype = working_type([scores, *tables])
        scores = torch.where(on.unsqueeze(2), scores.to(dtype), 0.0)
        start, pair, end = (table.to(dtype) for table in tables)
        return Chains(scores, start, pair, end, on)

    def _log_partition(self, c: Chains, segments: Tensor | None) -> Tensor:
        """log Z of each sequence, or of its segmentations if there are scores of segments."""
        if segments is not None:
            return segment_chains.segment_log_partition(c, segments, self._uses_tensors(c.emissions))
        if self._uses_tensors(c.emissions):
            return tensor_chain.log_partition(c)
        # sets of tags: segments of one token
        none = c.emissions.new_zeros(*c.emissions.shape[:2], 1, c.emissions.shape[2])
        return segment_chains.segment_log_partition(c, none, False)

    def _given(self, emissions: Tensor, sets: Tensor | None) -> Tensor:
        """Emissions with tags outside the sets forbidden."""
        if sets is None:
            return emissions
        check_type("emissions", emissions, Tensor)
        if not isinstance(sets, Tensor) or sets.dtype != torch.bool or sets.shape != emissions.shape:
            raise PotentiaError(
                f"sets of tags must be booleans of the shape {tuple(emissions.shape)} of the emissions."
            )
        return emissions.masked_fill(~sets, -torch.inf)

    def _segments(self, segments: Any, emissions: Tensor) -> Tensor:
        """Scores of segments, (batch, steps, longest, tags), checked and in the working type."""
        wanted = f"{tuple(emissions.shape[:2])} x longest x {self.num_tags}"
        if not isinstance(segments, Tensor) or segments.dim() != 4 or not segments.shape[2]:
            raise PotentiaError(f"segments must be a tensor of scores, {wanted}.")
        if segments.shape[:2] != emissions.shape[:2] or segments.shape[3] != self.num_tags:
            raise PotentiaError(f"segments has shape {tuple(segments.shape)}; expected {wanted}.")
        wide = segments if self.batch_first else segments.transpose(0, 1)
        return wide.to(working_type([emissions, segments, *self._transitions()]))

    def _begins(self, begins: Tensor | None, labels: Tensor) -> Tensor:
        """Where segments begin, (batch, steps)."""
        if begins is None:
            changes = labels[:, 1:] != labels[:, :-1]
        else:
            check_type("begins", begins, Tensor)
            on = begins if self.batch_first else begins.T
            if on.shape != labels.shape or on.dtype != torch.bool:
                raise PotentiaError("begins must be booleans of the shape of the tags.")
            changes = on[:, 1:]
        return torch.cat([torch.ones_like(labels[:, :1], dtype=torch.bool), changes], 1)

    def _sequences(self, emissions: Tensor, mask: Tensor | None) -> PaddedEmissions:
        """Emissions and transitions as the kernels take them."""
        lengths = self._mask(emissions, mask).sum(axis=1)
        return PaddedEmissions(emissions, self._transitions(), lengths, self.batch_first)

    def _transitions(self) -> list[Tensor]:
        """Scores of first tags, pairs and last tags, -inf where the scheme forbids."""
        scores = [self.start_transitions, self.transitions, self.end_transitions]
        forbidden = (self._forbidden_start, self._forbidden_transitions, self._forbidden_end)
        return [
            table if gone is None else table.masked_fill(gone, -torch.inf)
            for table, gone in zip(scores, forbidden, strict=True)
        ]

    def _mask(self, emissions: Tensor, mask: Tensor | None) -> Bools:
        """The mask as (batch, steps), checked along with the emissions."""
        check_type("emissions", emissions, Tensor)
        if emissions.dim() != 3 or not emissions.is_floating_point():
            raise PotentiaError(
                f"emissions must have 3 dimensions of floating-point numbers, got shape {tuple(emissions.shape)} "
                f"of {emissions.dtype}."
            )
        if emissions.shape[2] != self.num_tags:
            raise PotentiaError(
                f"emissions has {emissions.shape[2]} scores per token; expected num_tags={self.num_tags}."
            )
        shape = tuple(emissions.shape[:2])
        if mask is None:
            on = np.ones(shape, dtype=bool)
        else:
            check_type("mask", mask, Tensor)
            if mask.shape != shape:
                raise PotentiaError(f"mask has shape {tuple(mask.shape)}; expected {shape} as emissions.")
            on = mask.detach().cpu().numpy().astype(bool, copy=False)
        on = np.ascontiguousarray(on if self.batch_first else on.T)
        if on.shape[1] == 0 or not on[:, 0].all():
            raise PotentiaError("mask of the first timestep must all be on: a sequence has at least one token.")
        again = on[:, 1:] > on[:, :-1]
        if np.count_nonzero(again):
            bad = int(np.flatnonzero(again.any(axis=1))[0])
            raise PotentiaError(f"mask of sequence {bad} has a gap: tokens must come first and padding after them.")
        return on

    def _labels(self, emissions: Tensor, tags: Tensor, on: Bools) -> Ints:
        """Tags as (batch, steps)."""
        check_type("tags", tags, Tensor)
        if tags.shape != emissions.shape[:2] or tags.is_floating_point() or tags.is_complex():
            raise PotentiaError(
                f"tags must be whole numbers of shape {tuple(emissions.shape[:2])}, got shape {tuple(tags.shape)} "
                f"of {tags.dtype}."
            )
        numbers = tags.detach().cpu().numpy()
        labels: Ints = np.ascontiguousarray(numbers if self.batch_first else numbers.T, dtype=np.int64)
        # negative numbers are large ones without a sign
        bad = on & (labels.view(np.uint64) >= self.num_tags)
        if np.count_nonzero(bad):
            k, t = np.argwhere(bad)[0].tolist()
            raise PotentiaError(
                f"tags hold {labels[k, t]} at token {t} of sequence {k}; expected 0..{self.num_tags - 1}."
            )
        return labels
