"""One pure function per loss. All take logits, give a scalar in nats, and average over the batch.

KL(a, b) = sum_c a_c log(a_c / b_c). With logits p* = log-softmax, nothing is exponentiated and logged
again, so large logits give neither NaN nor infinity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

NOTHING: Mapping[str, Tensor] = MappingProxyType({})
Direction = Literal["teacher_student", "student_teacher"]


def _check_rows(rows: Tensor, name: str, columns: str = "classes") -> None:
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"{name} is {list(rows.shape)}, expected [batch, {columns}], none of them 0")


def _check_pair(first: Tensor, second: Tensor, names: tuple[str, str] = ("teacher", "student")) -> None:
    """Two tensors of one shape, the second of rows [batch, classes]."""
    _check_rows(second, f"{names[1]} logits")
    if first.shape != second.shape:
        raise ValueError(f"{names[0]} {list(first.shape)} and {names[1]} {list(second.shape)} differ")


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}, expected above 0 and finite")


def cross_entropy(logits: Tensor, labels: Tensor, extras: Mapping[str, Tensor] = NOTHING) -> Tensor:
    """-log softmax(logits)[label], mean over the batch.

    With class weights v and label smoothing e it is torch's: sum_i l_i / sum_i v_{y_i}, where
    l_i = (1 - e) v_{y_i} CE(y_i) + e / C sum_c v_c CE(c). Szegedy et al. 2016, arXiv 1512.00567.

    Args:
        logits: [batch, classes], float.
        labels: [batch], int64.
        extras: a local loss's third argument. Of it `class_weights` [classes] and `label_smoothing`, a
            scalar, are read; it has both or neither (see `label_options`).
    Returns: scalar.
    Raises: ValueError if the shapes are others.
    """
    _check_rows(logits, "logits")
    if labels.shape != logits.shape[:1]:
        raise ValueError(f"labels are {list(labels.shape)}, expected [{len(logits)}], one a row of logits")
    if "class_weights" in extras:
        return _weighted_cross_entropy(logits, labels, extras["class_weights"], extras["label_smoothing"])
    # Under vmap torch takes this function apart in Python, for which it imports its compiler: a second's
    # work. These are the same operations, so that the bits are the same as well.
    if torch._C._functorch.is_batchedtensor(logits):
        likelihoods = F.log_softmax(logits, dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
        return (-likelihoods).sum() / len(labels)
    return F.cross_entropy(logits, labels)


def _weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor, smoothing: Tensor) -> Tensor:
    costs, sample_weights = -F.log_softmax(logits, dim=1), weights[labels]
    hard = costs.gather(1, labels.unsqueeze(1)).squeeze(1)
    # Without smoothing the mean over classes does not count, also where a logit is -inf.
    even = torch.where(smoothing > 0, (weights * costs).mean(dim=1), 0.0)
    return ((1 - smoothing) * sample_weights * hard + smoothing * even).sum() / sample_weights.sum()


def soft_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """-sum_c labels_c log softmax(logits)_c, mean over the batch; KL(labels, softmax) and labels' entropy.

    Args:
        labels: [batch, classes], probabilities; rows that an attacker has moved off the simplex are taken as
            they are. No gradient reaches them.
        logits: the same shape, the student's; gradient passes.
    Returns: scalar.
    Raises: ValueError if the shapes differ or are not [batch, classes].
    """
    _check_pair(labels, logits, ("labels", "student"))
    return F.cross_entropy(logits, labels.detach())


def kl_divergence(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(softmax(teacher), softmax(student)), mean over the batch. Gradient reaches both.

    Args:
        teacher_logits: [batch, classes], float.
        student_logits: the same shape and device.
    Returns: scalar.
    Raises: ValueError if the shapes differ or are not [batch, classes].
    """
    _check_pair(teacher_logits, student_logits)
    target = F.log_softmax(teacher_logits, dim=1)
    return F.kl_div(F.log_softmax(student_logits, dim=1), target, reduction="batchmean", log_target=True)


def jensen_shannon_divergence(first_logits: Tensor, second_logits: Tensor) -> Tensor:
    """(KL(p, m) + KL(q, m)) / 2 of softmaxes p and q with m = (p + q) / 2, mean over the batch.

    Args:
        first_logits, second_logits: [batch, classes], of one shape; gradient reaches both.
    Returns: scalar, in [0, log 2].
    Raises: ValueError if the shapes differ or are not [batch, classes].
    """
    _check_pair(first_logits, second_logits, ("first", "second"))
    log_p, log_q = F.log_softmax(first_logits, dim=1), F.log_softmax(second_logits, dim=1)
    # In the log domain, because p and q underflow to 0 where logits are far apart.
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    sums = [F.kl_div(log_m, side, reduction="batchmean", log_target=True) for side in (log_p, log_q)]
    return (sums[0] + sums[1]) / 2


def distillation(teacher_logits: Tensor, student_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(softmax(teacher / T), softmax(student / T)), mean over the batch.

    Hinton et al. 2015, arXiv 1503.02531, section 2; with T = 1 FedKF's eq. 6. Gradient reaches the
    student only.

    Args:
        teacher_logits: [batch, classes], float.
        student_logits: the same shape and device.
        temperature: T > 0.
    Returns: scalar.
    Raises: ValueError if the shapes differ or are not [batch, classes], or T is not above 0 and finite.
    """
    _check_temperature(temperature)
    teacher = teacher_logits.detach()
    if temperature == 1:
        return kl_divergence(teacher, student_logits)
    return temperature**2 * kl_divergence(teacher / temperature, student_logits / temperature)


def directed_divergence(
    teacher_logits: Tensor, student_logits: Tensor, temperature: float, direction: Direction
) -> Tensor:
    """KL at temperature T in either direction, mean over the batch, not times T^2.

    Args:
        teacher_logits: [batch, classes], float; no gradient reaches it.
        student_logits: the same shape and device; gradient passes.
        temperature: T > 0.
        direction: KL(teacher, student), or KL(student, teacher).
    Returns: scalar.
    Raises: ValueError if the shapes differ or are not [batch, classes].
    """
    teacher, student = teacher_logits.detach() / temperature, student_logits / temperature
    pair = (teacher, student) if direction == "teacher_student" else (student, teacher)
    return kl_divergence(*pair)


def weighted_distillation(
    teacher_logits: Tensor, student_logits: Tensor, weights: Tensor, temperature: float = 1.0
) -> Tensor:
    """T^2 sum_c w_c q_c log(q_c / p_c), mean over the batch; q, p: softmaxes at T of teacher and student.

    Distillation with classes weighed, as FedICT has it (Wu et al. 2024, arXiv 2301.00389). Gradient reaches
    the student only. Unequal weights may make it negative.

    Args:
        teacher_logits: [batch, classes], float.
        student_logits: the same shape and device.
        weights: [classes], w.
        temperature: T > 0.
    Returns: scalar.
    Raises: ValueError if the shapes differ.
    """
    _check_pair(teacher_logits, student_logits)
    if weights.shape != student_logits.shape[1:]:
        raise ValueError(f"weights are {list(weights.shape)}, expected [{student_logits.shape[1]}]")
    target = F.log_softmax(teacher_logits.detach() / temperature, dim=1)
    student = F.log_softmax(student_logits / temperature, dim=1)
    terms = F.kl_div(student, target, reduction="none", log_target=True)
    return temperature**2 * (weights * terms).sum(dim=1).mean()


def one_hot_loss(logits: Tensor) -> Tensor:
    """L_OH = CE(p, argmax p): low where each sample is clearly of one class. FedKF eq. 2.

    Args:
        logits: [batch, classes], the teacher's on generated samples; gradient passes.
    Returns: scalar.
    Raises: ValueError if the shape is another.
    """
    _check_rows(logits, "logits")  # before a class is looked for
    return cross_entropy(logits, logits.argmax(dim=1))


def information_entropy_loss(logits: Tensor, normalised: bool = False) -> Tensor:
    """L_IE = -H(mean over the batch of softmax(logits)): low where all classes are as frequent. FedKF eq. 3.

    Args:
        logits: [batch, classes], the teacher's on generated samples; gradient passes.
        normalised: 1 - H / log(classes) instead, which the released code minimises.
    Returns: scalar; in [-log(classes), 0], or in [0, 1].
    Raises: ValueError if the shape is another, or for `normalised` with one class, where log C is 0.
    """
    _check_rows(logits, "logits")
    if normalised and logits.shape[1] == 1:
        raise ValueError("logits are of 1 class, expected 2 or more for the normalised entropy")
    # The log of a mean in the log domain: a class that no sample has gives no log 0.
    log_mean = F.log_softmax(logits, dim=1).logsumexp(dim=0) - math.log(len(logits))
    negative_entropy = (log_mean.exp() * log_mean).sum()
    return 1 + negative_entropy / math.log(logits.shape[1]) if normalised else negative_entropy


def activation_loss(features: Tensor, reduction: str = "mean") -> Tensor:
    """L_A = -|f|: low where the teacher's features answer strongly, as they do to real samples. FedKF eq. 4.

    Args:
        features: [batch, feature_size], input of the teacher's last layer; gradient passes.
        reduction: "mean" over features (DAFL and the released code), or "sum" (eq. 4 as printed).
    Returns: scalar, mean over the batch.
    Raises: ValueError if the shape or the reduction is another.
    """
    _check_rows(features, "features", "feature_size")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}, expected 'mean' or 'sum'")
    strength = features.abs()
    return -(strength.mean(dim=1) if reduction == "mean" else strength.sum(dim=1)).mean()


def diversity_loss(noise: Tensor, samples: Tensor) -> Tensor:
    """mean|e1 - e2| / (mean|Z1 - Z2| + 1e-5): low where different noise gives different samples. KDIA eq. 4.

    Args:
        noise: [batch, latent]; its first and second half are e1 and e2, an odd last row is left out.
        samples: [batch, ...], made from `noise`; gradient passes.
    Returns: scalar.
    Raises: ValueError if there are fewer than two samples, or not as many as rows of noise.
    """
    half = len(noise) // 2
    if half == 0 or len(samples) != len(noise):
        raise ValueError(f"{len(noise)} rows of noise, {len(samples)} samples, expected as many, 2 or more")
    between_noise = (noise[:half] - noise[half : 2 * half]).abs().mean()
    between_samples = (samples[:half] - samples[half : 2 * half]).abs().mean()
    return between_noise / (between_samples + 1e-5)


def pairwise_diversity_loss(noise: Tensor, samples: Tensor) -> Tensor:
    """exp(-mean_{ij} d(e_i, e_j) |Z_i - Z_j|): low where different noise gives different samples. FedGen.

    Zhu et al. 2021, arXiv 2105.10056, its released code; FedFTG's L_dis. d is the mean squared difference of
    components, |.| the mean absolute one; all pairs of the batch, also of equals.

    Args:
        noise: [batch, latent].
        samples: [batch, ...], made from `noise`; gradient passes.
    Returns: scalar, in (0, 1].
    Raises: ValueError if there are not as many samples as rows of noise.
    """
    if len(samples) != len(noise):
        raise ValueError(f"{len(noise)} rows of noise, {len(samples)} samples, expected as many")
    flat = samples.flatten(1)
    between_noise = (noise[:, None] - noise[None]).square().mean(2)
    between_samples = (flat[:, None] - flat[None]).abs().mean(2)
    return torch.exp(-(between_noise * between_samples).mean())


def target_divergence(probabilities: Tensor, logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2 KL(probabilities, softmax(logits / T)), mean over the batch: distillation from a mixed target.

    Args:
        probabilities: [batch, classes], rows sum to 1 (already at temperature T); zeros are allowed.
        logits: [batch, classes], the student's; gradient passes.
        temperature: T > 0.
    Returns: scalar.
    Raises: ValueError if the shapes differ or T is not above 0 and finite.
    """
    _check_temperature(temperature)
    _check_pair(probabilities, logits, ("target", "student"))
    log_student = F.log_softmax(logits / temperature, dim=1)
    # kl_div takes 0 log 0 as 0 in a target that is given as probabilities.
    return temperature**2 * F.kl_div(log_student, probabilities.detach(), reduction="batchmean")


def squared_distance(first: Iterable[Tensor], second: Iterable[Tensor]) -> Tensor:
    """sum (a - b)^2 over all elements of pairs of tensors; gradient passes, and is 0 where they are equal.

    Args:
        first, second: as many tensors, of the same shapes.
    Returns: scalar.
    """
    return torch.stack([(a - b).square().sum() for a, b in zip(first, second, strict=True)]).sum()


def contrastive_loss(features: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """-log( e^(cos(z, z_g) / tau) / (e^(cos(z, z_g) / tau) + sum_b e^(cos(z, z_b) / tau)) ). MOON.

    Li, He, Song 2021, arXiv 2103.16257; one z_b for each earlier local model. Gradient reaches `features`
    only.

    Args:
        features: [batch, feature_size], z.
        positive: the same shape, z_g.
        negatives: [n, batch, feature_size], the z_b.
        temperature: tau > 0.
    Returns: scalar, mean over the batch.
    """
    compared = torch.cat([positive[None], negatives]).detach()
    similarities = F.cosine_similarity(features, compared, dim=2) / temperature
    # Row 0 is the positive: its log-softmax over all rows is the log of MOON's fraction.
    return -F.log_softmax(similarities, dim=0)[0].mean()


def blended_loss(
    logits: Tensor,
    labels: Tensor,
    teacher_logits: Tensor,
    shares: tuple[Tensor, Tensor],
    temperature: float = 1.0,
) -> Tensor:
    """h_i CE_i + s_i T^2 KL(softmax(teacher_i / T), softmax(student_i / T)), mean over the batch.

    FedGEMS eq. 1, 2 and 5, where every sample has its own teacher or none.

    Args:
        logits: [batch, classes], the student's; gradient reaches nothing else.
        labels: [batch] int64.
        teacher_logits: [batch, classes]; any finite values where s_i is 0.
        shares: h and s, [batch] each.
        temperature: T > 0.
    Returns: scalar.
    Raises: ValueError if the shapes differ.
    """
    _check_pair(teacher_logits, logits)
    hard, soft = shares
    student = F.log_softmax(logits / temperature, dim=1)
    target = F.log_softmax(teacher_logits.detach() / temperature, dim=1)
    divergence = F.kl_div(student, target, reduction="none", log_target=True).sum(dim=1)
    entropy = F.cross_entropy(logits, labels, reduction="none")
    return (hard * entropy + soft * temperature**2 * divergence).mean()


def logit_error(teacher_logits: Tensor, student_logits: Tensor, *, squared: bool = False) -> Tensor:
    """Mean absolute, or squared, difference of logits, over batch and classes. FedMD's digest.

    Args:
        teacher_logits: [batch, classes]; no gradient reaches it.
        student_logits: the same shape; gradient passes.
    Returns: scalar.
    Raises: ValueError if the shapes differ or are not [batch, classes].
    """
    _check_pair(teacher_logits, student_logits)
    difference = student_logits - teacher_logits.detach()
    return difference.square().mean() if squared else difference.abs().mean()


def adversarial_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Mean of -log f(x) over real samples and -log(1 - f(x)) over generated ones, together. DaFKD eq. 2.

    Args:
        real: [n] the discriminator's logits on real samples.
        fake: [m] on generated ones.
    Returns: scalar.
    """
    # softplus(-x) = -log sigmoid(x), also where sigmoid rounds to 0 or 1.
    terms = torch.cat([F.softplus(-real), F.softplus(fake)])
    return terms.mean()
