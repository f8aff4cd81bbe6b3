"""What is true of every operator."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laws.members import CHANNELS, OPERATORS, POSITIONS, matrices, random, signal
from torchvars.attention import PositiveFeatures
from torchvars.sparse import Convolution, Dense, Joint, Partition, SparseCoding, fourier
from torchvars.sparse.bounds import largest_eigenvalue, perron_eigenvalue
from torchvars.sparse.fourier import Spectrum, inverse, transform

# How far above the largest eigenvalue a bound may lie: what each operator claims.
CLAIMED = {"dense": 1.05, "wide": 1.05, "positive": 1.05, "wide_positive": 1.05, "convolution": 1 + 1e-9}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return OPERATORS[request.param]()


def test_analysis_is_the_adjoint_of_synthesis(operator):
    x, u = signal(), random(2, operator.size, CHANNELS, seed=3)
    there = (operator.synthesize(u) * x).sum(-2)
    back = (u * operator.analyze(x)).sum(-2)
    torch.testing.assert_close(there, back, rtol=1e-12, atol=1e-12)


def test_gram_is_analysis_after_synthesis(operator):
    u = random(2, operator.size, CHANNELS, seed=3)
    torch.testing.assert_close(operator.gram(u), operator.analyze(operator.synthesize(u)), rtol=1e-12, atol=1e-12)


def test_operator_is_the_matrix_of_its_atoms(operator):
    matrix = matrices(operator)
    u = random(2, operator.size, CHANNELS, seed=3)
    expected = (matrix @ u.mT.unsqueeze(-1)).squeeze(-1).mT
    torch.testing.assert_close(operator.synthesize(u), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_is_never_below_the_largest_eigenvalue_and_tight_where_claimed(name, dtype):
    operator = OPERATORS[name]()
    matrix = matrices(operator)
    largest = torch.linalg.eigvalsh(matrix.mT @ matrix)[..., -1]
    bound = cast(operator, dtype).lipschitz().double().squeeze(-2)
    assert (bound >= largest).all()
    if name in CLAIMED:
        assert (bound <= max(CLAIMED[name], 1 + 1e-4 * (dtype == torch.float32)) * largest).all()
    if isinstance(operator, Joint):
        parts = operator.first.lipschitz() + operator.second.lipschitz()
        assert (bound <= parts.squeeze(-2) * (1 + 1e-5)).all()


def test_joint_bound_is_tight_when_a_dense_part_dominates():
    # As with positive features: all atoms share a direction, and the filters are weaker than it.
    grid = (14, 14)
    shared = Dense(torch.nn.functional.normalize(random(2, 196, 64).exp(), dim=-2), nonnegative=True)
    joint = Joint(Convolution(random(CHANNELS, 3, *grid, seed=1) / 14, grid), shared)
    matrix = matrices(joint)
    largest = torch.linalg.eigvalsh(matrix @ matrix.mT)[..., -1]
    ratio = joint.lipschitz().squeeze(-2) / largest
    assert (ratio >= 1).all()
    assert (ratio <= 1.05).all()


def test_a_bound_carries_no_gradient():
    atoms = random(2, POSITIONS, 6).requires_grad_()
    filters = random(CHANNELS, 2, 3, 3).requires_grad_()
    joint = Joint(Convolution(filters, (4, 5)), Dense(atoms))
    for part in (joint, joint.first, joint.second):
        assert not part.lipschitz().requires_grad


@given(size=st.integers(1, 40), rank=st.integers(1, 40), spread=st.floats(0, 6), seed=st.integers(0, 10**6))
def test_largest_eigenvalue_of_any_positive_matrix(size, rank, spread, seed):
    # Spectra from flat (the hardest for a norm of powers) to decaying over orders of magnitude.
    eigenvalues = torch.logspace(0, -spread, size, dtype=torch.float64) * (torch.arange(size) < rank)
    vectors, _ = torch.linalg.qr(random(size, size, seed=seed))
    matrix = vectors * eigenvalues @ vectors.mT
    bound, direction = largest_eigenvalue(matrix)
    assert 1 <= bound <= 1.05 * (1 + 1e-12)
    assert direction.shape == (size, 1)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("count", [16, 64, 128])
def test_perron_eigenvalue_of_positive_features(sharpness, count):
    """From features that are nearly constant over the tokens to features that pick out single ones."""
    queries = sharpness * random(4, 2, 196, 32)
    atoms = PositiveFeatures(32, 2, count).double().atoms(queries)
    gram = atoms.mT @ atoms
    ratio = perron_eigenvalue(gram)[0] / torch.linalg.eigvalsh(gram)[..., -1]
    assert (ratio >= 1).all()
    assert (ratio <= 1.05).all()


@given(size=st.integers(1, 12), zeros=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_perron_eigenvalue_of_any_nonnegative_matrix(size, zeros, seed):
    """Never below, whatever falls apart into blocks; never above the largest row sum."""
    generator = torch.Generator().manual_seed(seed)
    entries = torch.rand(2, size, size, dtype=torch.float64, generator=generator)
    factor = entries[0] * (entries[1] > zeros)
    matrix = factor.mT @ factor
    bound, _ = perron_eigenvalue(matrix)
    assert bound >= torch.linalg.eigvalsh(matrix)[-1]
    assert bound <= max(matrix.sum(-1).max().item() * (1 + 1e-9), 1e-100)


def test_bound_of_zero_atoms_is_nearly_zero_and_can_be_inverted():
    for nonnegative in (False, True):
        bound = Dense(torch.zeros(5, 3), nonnegative=nonnegative).lipschitz()
        assert 0 < bound.item() < 1e-15
        assert torch.isfinite(1 / bound)


@given(
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    filters=st.integers(1, 3),
    data=st.data(),
)
def test_convolution_places_every_filter_at_every_position(height, width, filters, data):
    """Against atoms written out one by one, with no Fourier transform."""
    size = data.draw(st.tuples(st.integers(1, height), st.integers(1, width)))
    bank = random(2, filters, *size, seed=height * width)
    atoms = torch.zeros(2, height * width, filters * height * width, dtype=torch.float64)
    for f in range(filters):
        for p in range(height * width):
            for i in range(size[0]):
                for j in range(size[1]):
                    row = (p // width + i - size[0] // 2) % height
                    column = (p % width + j - size[1] // 2) % width
                    atoms[:, row * width + column, f * height * width + p] += bank[:, f, i, j]
    operator = Convolution(bank, (height, width))
    torch.testing.assert_close(matrices(operator, 2)[0], atoms, rtol=1e-12, atol=1e-12)
    largest = torch.linalg.eigvalsh(atoms.mT @ atoms)[..., -1]
    torch.testing.assert_close(operator.lipschitz().squeeze(-2), largest, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("products", [True, False])
def test_spectra_are_the_same_by_products_and_by_fast_transforms(products, monkeypatch):
    monkeypatch.setattr(fourier, "LONGEST_PRODUCTS", 64 if products else 0)
    for height, width in ((4, 5), (5, 4), (1, 6), (7, 1), (2, 2)):
        filters = random(3, min(height, 3), min(width, 2), 2)
        padded = torch.zeros(3, height, width, 2, dtype=torch.float64)
        for i in range(filters.shape[1]):
            for j in range(filters.shape[2]):
                padded[:, (i - filters.shape[1] // 2) % height, (j - filters.shape[2] // 2) % width] = filters[:, i, j]
        expected = torch.fft.rfft2(padded, dim=(1, 2))
        spectrum = fourier.filter_spectrum(filters, (height, width))
        torch.testing.assert_close(torch.complex(*spectrum), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.complex(*transform(padded)), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(inverse(spectrum, (height, width)), padded, rtol=0, atol=1e-12)
        energy = fourier.energies(spectrum, (height, width)).sum((1, 2))
        torch.testing.assert_close(energy, padded.square().sum((1, 2)), rtol=1e-12, atol=0)


@given(height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 100))
def test_transform_and_inverse_equal_the_fast_fourier_transform(height, width, seed):
    image = random(2, height, width, 3, seed=seed)
    expected = torch.fft.rfft2(image, dim=(1, 2))
    torch.testing.assert_close(torch.complex(*transform(image)), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(inverse(transform(image), (height, width)), image, rtol=0, atol=1e-12)
    # Also of a half spectrum that belongs to no real image: its impossible parts are projected away, as by irfft2.
    half = torch.complex(random(2, height, width // 2 + 1, 3, seed=seed), random(2, height, width // 2 + 1, 3))
    expected = torch.fft.irfft2(half, s=(height, width), dim=(1, 2))
    torch.testing.assert_close(inverse(Spectrum(half.real, half.imag), (height, width)), expected, rtol=0, atol=1e-12)


def test_row_sums_majorise_the_gram_matrix(operator):
    matrix = matrices(operator)
    sums = operator.row_sums().expand(2, -1, CHANNELS).mT
    least = torch.linalg.eigvalsh(torch.diag_embed(sums) - matrix.mT @ matrix)[..., 0]
    assert (least >= -1e-12).all()


@given(
    keys=st.integers(1, 12),
    atoms=st.integers(1, 12),
    scale=st.sampled_from([0.01, 1.0, 100.0]),
    seed=st.integers(0, 10**6),
)
def test_row_sums_of_a_partition_majorise_for_any_keys(keys, atoms, scale, seed):
    shares = (scale * random(keys, atoms, seed=seed)).softmax(-1)
    sums = Partition(shares).row_sums()
    torch.testing.assert_close(sums.squeeze(-1), shares.T @ shares.sum(1), rtol=1e-12, atol=1e-140)
    assert torch.linalg.eigvalsh(torch.diag(sums.squeeze(-1)) - shares.T @ shares)[0] >= -1e-12


def test_dense_prefers_the_cheaper_gram():
    assert Dense(torch.zeros(10, 20)).gram_matrix is not None
    assert Dense(torch.zeros(10, 21)).gram_matrix is None


def test_filters_larger_than_the_grid_are_refused():
    with pytest.raises(ValueError, match="filters of 3 x 6 do not fit on a grid of 4 x 5"):
        Convolution(torch.zeros(1, 1, 3, 6), (4, 5))


def test_atoms_without_a_matrix_are_refused():
    with pytest.raises(ValueError, match=r"atoms must have shape \(..., N, M\), got \(4,\)"):
        Dense(torch.zeros(4))


def cast(operator, dtype):
    """The same dictionary in another precision."""
    if isinstance(operator, Joint):
        return Joint(cast(operator.first, dtype), cast(operator.second, dtype))
    if isinstance(operator, Partition):
        return Partition(operator.atoms.to(dtype))
    if isinstance(operator, Dense):
        return Dense(operator.atoms.to(dtype), nonnegative=operator.nonnegative)
    return Convolution(operator.filters.movedim(-1, -4).to(dtype), operator.grid)


@pytest.mark.parametrize("made_with", [True, False])
def test_what_is_found_later_has_a_graph_if_gradients_were_on_when_it_was_made(made_with):
    filters = torch.randn(1, 1, 2, 2, requires_grad=True)
    with torch.set_grad_enabled(made_with):
        problem = SparseCoding(Convolution(filters, (3, 3)), torch.randn(9, 1), 0.1)
    with torch.set_grad_enabled(not made_with):
        analysis = problem.analysis
    assert analysis.requires_grad is made_with
    assert problem.analysis is analysis
