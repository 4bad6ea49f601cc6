"""Secure aggregation as a protocol: sums are exact, sites may drop out, and lies are refused."""

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.deploy.secure.sums import as_tensors, as_words, words_spec
from undrift.privacy.secure.attempt import Attempt, SecureError, default_threshold
from undrift.privacy.secure.fixed_point import WORD_TYPES, FixedPoint
from undrift.privacy.secure.keys import KeyPair, add_mask, agreed_seed, opened, public_key, seal
from undrift.privacy.secure.server import SecureServer
from undrift.privacy.secure.shares import combine, recovered, split
from undrift.privacy.secure.site import STAGES, Advert, SecureSite
from undrift.utils.errors import UndriftError

NAMES = ("a", "b", "c", "d", "e")


def signing(name):
    """A stand-in for a site's long-lived key, which the deployment's tests use for real."""
    return lambda content: hmac.new(name.encode(), content, hashlib.sha256).digest()


def verify(site, content, signature):
    return None if signing(site)(content) == signature else f"not signed by {site}"


class Sites:
    """All sites of an attempt in one process, with what each of them uploads."""

    def __init__(self, names=NAMES, threshold=3, size=7, seed=0, word_bits=64):
        self.attempt = Attempt("run", 4, 1, names, threshold)
        self.unmasked = set()
        self.sites = {name: self.site(name) for name in names}
        rng = np.random.default_rng(seed)
        self.uploads = {
            name: {"x": rng.normal(size=size), "c": rng.normal(size=3)} for name in names
        }
        # So few bits that the error of the encoding is far above that of the test's own sums.
        self.coding = FixedPoint(len(names), 100.0, 30)
        if word_bits < 64:
            self.coding = FixedPoint.finest(len(names), 100.0, word_bits)

    def site(self, name, attempt=None):
        def once(attempt):
            new = (name, attempt.round) not in self.unmasked
            self.unmasked.add((name, attempt.round))
            return new

        return SecureSite(name, attempt or self.attempt, signing(name), verify, once)

    def words(self, name):
        return {key: self.coding.encode(value) for key, value in self.uploads[name].items()}

    def sent(self, words):
        """Masked words after their way in a message."""
        return as_words(as_tensors(words, self.coding), self.coding)

    def sum(self, names):
        return {key: sum(self.uploads[name][key] for name in names) for key in ("x", "c")}

    def decoded(self, found):
        return {key: self.coding.decode(words) for key, words in found.items()}


def run(sites, gone=None):
    """The sums, if the sites in `gone[stage]` fall silent from that stage on."""
    gone = gone or {}
    silent = set()
    server = SecureServer(sites.attempt)

    def asked(stage, names):
        silent.update(gone.get(stage, ()))
        return [sites.sites[name] for name in names if name not in silent]

    server.advertised({s.name: s.advertise() for s in asked("advertise", sites.attempt.cohort)})
    server.shared({s.name: s.share(server.adverts) for s in asked("share", server.adverts)})
    server.masked(
        {
            s.name: sites.sent(s.mask(server.sealed_for(s.name), sites.words(s.name)))
            for s in asked("mask", server.senders)
        }
    )
    server.agreed({s.name: s.agree(server.survivors) for s in asked("agree", server.survivors)})
    revealed = {s.name: s.unmask(server.signatures) for s in asked("unmask", server.survivors)}
    return server, sites.decoded(server.unmasked(revealed))


def close(sites, found, names):
    wanted = sites.sum(names)
    return all(np.abs(found[key] - wanted[key]).max() <= sites.coding.error for key in wanted)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(3, 7).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.integers(n // 2 + 1, n),
            st.lists(st.sampled_from(STAGES), max_size=n),
            st.randoms(use_true_random=False),
            st.sampled_from([16, 24, 32, 64]),
        )
    )
)
def test_any_dropouts_down_to_the_threshold_decode(case):
    count, threshold, stages, random, word_bits = case
    names = tuple(f"site {i}" for i in range(count))
    sites = Sites(names, threshold, word_bits=word_bits)
    leaving = random.sample(names, len(stages))
    gone = {}
    for stage, name in zip(stages, leaving, strict=True):
        gone.setdefault(stage, []).append(name)
    if count - len(stages) < threshold:
        with pytest.raises(SecureError, match="fewer than the threshold"):
            run(sites, gone)
        return
    server, found = run(sites, gone)
    early = {name for stage in STAGES[:3] for name in gone.get(stage, ())}
    assert set(server.survivors) == set(names) - early
    assert close(sites, found, server.survivors)


def test_what_the_server_holds_looks_random_and_does_not_depend_on_the_uploads():
    """Each masked upload is uniform on 64 bits: both of its bits' frequencies and its mean."""
    size = 20_000
    sites = Sites(size=size)
    server = SecureServer(sites.attempt)
    server.advertised({name: site.advertise() for name, site in sites.sites.items()})
    server.shared({name: site.share(server.adverts) for name, site in sites.sites.items()})
    for name, site in sites.sites.items():
        words = site.mask(server.sealed_for(name), sites.words(name))["x"]
        ones = np.unpackbits(words.view(np.uint8)).mean()
        # Standard deviation 0.5/√(64·size): six of them are exceeded once in 5e8 tests.
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(64 * size)
        upload = sites.uploads[name]["x"]
        correlation = np.corrcoef(words.view(np.int64).astype(float), upload)[0, 1]
        assert abs(correlation) < 6 / np.sqrt(size)


def test_masks_of_two_attempts_differ():
    masked = []
    for number in (1, 2):
        sites = Sites()
        sites.attempt = Attempt("run", 4, number, NAMES, 3)
        sites.sites = {name: sites.site(name) for name in NAMES}
        server = SecureServer(sites.attempt)
        server.advertised({name: site.advertise() for name, site in sites.sites.items()})
        server.shared({name: site.share(server.adverts) for name, site in sites.sites.items()})
        masked.append(sites.sites["a"].mask(server.sealed_for("a"), sites.words("a"))["x"])
    assert not np.any(masked[0] == masked[1])


class TestADishonestServer:
    def test_keys_that_the_server_made_are_refused(self):
        sites = Sites()
        adverts = {name: site.advertise() for name, site in sites.sites.items()}
        mine = KeyPair()
        real = adverts["b"]
        forged = Advert(mine.public, real.share_key, real.seed_hash, real.signature)
        with pytest.raises(SecureError, match="'b' are not its own"):
            sites.sites["a"].share({**adverts, "b": forged})

    def test_keys_of_another_round_are_refused(self):
        sites, later = Sites(), Sites()
        later.attempt = Attempt("run", 5, 1, NAMES, 3)
        later.sites = {name: later.site(name) for name in NAMES}
        old = sites.sites["b"].advertise()
        adverts = {name: site.advertise() for name, site in later.sites.items()}
        with pytest.raises(SecureError, match="'b' are not its own"):
            later.sites["a"].share({**adverts, "b": old})

    def test_exchanged_keys_of_the_site_itself_are_noticed(self):
        sites = Sites()
        adverts = {name: site.advertise() for name, site in sites.sites.items()}
        other = sites.site("a").advertise()
        with pytest.raises(SecureError, match="were exchanged"):
            sites.sites["a"].share({**adverts, "a": other})

    def test_one_key_for_two_sites_is_refused(self):
        sites = Sites()
        adverts = {name: site.advertise() for name, site in sites.sites.items()}
        with pytest.raises(SecureError, match="same key"):
            sites.sites["a"].share({**adverts, "b": adverts["c"]})

    @pytest.mark.parametrize("stage", ["share", "mask", "agree"])
    def test_too_few_sites_are_refused_by_a_site(self, stage):
        sites = Sites()
        server, site = SecureServer(sites.attempt), sites.sites["a"]
        server.advertised({name: each.advertise() for name, each in sites.sites.items()})
        few = {name: server.adverts[name] for name in ("a", "b")}
        if stage == "share":
            with pytest.raises(SecureError, match="fewer than the threshold"):
                site.share(few)
            return
        server.shared({name: each.share(server.adverts) for name, each in sites.sites.items()})
        sealed = server.sealed_for("a")
        if stage == "mask":
            with pytest.raises(SecureError, match="fewer than the threshold"):
                site.mask({"b": sealed["b"]}, sites.words("a"))
            return
        site.mask(sealed, sites.words("a"))
        with pytest.raises(SecureError, match="fewer than the threshold"):
            site.agree(("a", "b"))

    def test_two_lists_of_survivors_reveal_nothing(self):
        """Half of the sites hear that e survived, the others that it did not."""
        sites = Sites()
        server = SecureServer(sites.attempt)
        server.advertised({name: site.advertise() for name, site in sites.sites.items()})
        server.shared({name: site.share(server.adverts) for name, site in sites.sites.items()})
        for name, site in sites.sites.items():
            site.mask(server.sealed_for(name), sites.words(name))
        lists = {"a": NAMES, "b": NAMES, "c": NAMES[:4], "d": NAMES[:4], "e": NAMES}
        signed = {name: sites.sites[name].agree(lists[name]) for name in NAMES}
        for name in ("a", "c"):
            with pytest.raises(SecureError, match="not agreed"):
                sites.sites[name].unmask({each: signed[each] for each in ("a", "c", "d")})
        with pytest.raises(SecureError, match="fewer than the threshold"):
            sites.sites["b"].unmask({each: signed[each] for each in ("a", "b")})

    def test_two_lists_of_senders_reveal_nothing(self):
        """Site a hears of fewer senders than the others: their masks do not cancel."""
        sites = Sites()
        server = SecureServer(sites.attempt)
        server.advertised({name: site.advertise() for name, site in sites.sites.items()})
        server.shared({name: site.share(server.adverts) for name, site in sites.sites.items()})
        for name, site in sites.sites.items():
            sealed = server.sealed_for(name)
            if name == "a":
                del sealed["e"]
            site.mask(sealed, sites.words(name))
        survivors = NAMES[:4]
        signed = {name: sites.sites[name].agree(survivors) for name in survivors}
        for name in survivors:
            with pytest.raises(SecureError, match="not agreed"):
                sites.sites[name].unmask(signed)

    def test_shares_that_were_exchanged_or_changed_are_refused(self):
        sites = Sites()
        server = SecureServer(sites.attempt)
        server.advertised({name: site.advertise() for name, site in sites.sites.items()})
        server.shared({name: site.share(server.adverts) for name, site in sites.sites.items()})
        sealed = server.sealed_for("a")
        wrong = {**sealed, "b": sealed["c"], "c": sealed["b"]}
        with pytest.raises(SecureError, match="changed on its way"):
            sites.sites["a"].mask(wrong, sites.words("a"))

    def test_every_stage_is_taken_once_and_in_order(self):
        sites = Sites()
        site = sites.sites["a"]
        with pytest.raises(SecureError, match="'advertise' is next"):
            site.share({})
        adverts = {name: each.advertise() for name, each in sites.sites.items()}
        with pytest.raises(SecureError, match="'share' is next"):
            site.advertise()
        site.share(adverts)
        with pytest.raises(SecureError, match="not due"):
            site.share(adverts)

    def test_a_round_is_unmasked_once(self):
        sites = Sites()
        run(sites)
        sites.sites = {name: sites.site(name) for name in NAMES}
        with pytest.raises(SecureError, match="unmasked before"):
            run(sites)

    def test_a_site_reveals_one_of_the_two_secrets_of_every_site(self):
        sites = Sites()
        server = SecureServer(sites.attempt)
        server.advertised({name: site.advertise() for name, site in sites.sites.items()})
        server.shared({name: site.share(server.adverts) for name, site in sites.sites.items()})
        survivors = NAMES[:4]
        for name in survivors:
            sites.sites[name].mask(server.sealed_for(name), sites.words(name))
        signed = {name: sites.sites[name].agree(survivors) for name in survivors}
        held = {name: dict(sites.sites[name]._shares) for name in survivors}
        for name in survivors:
            revealed = sites.sites[name].unmask(signed)
            assert set(revealed) == set(NAMES)
            for other, share in revealed.items():
                key, seed = held[name][other][:32], held[name][other][32:]
                assert share == (key if other == "e" else seed)
            assert not sites.sites[name]._shares and not sites.sites[name]._seed


def test_wrong_shares_of_some_sites_do_not_spoil_the_sum(monkeypatch):
    sites = Sites()
    honest = SecureSite.unmask

    def lying(self, signatures):
        found = honest(self, signatures)
        return {site: bytes(32) for site in found} if self.name == "b" else found

    monkeypatch.setattr(SecureSite, "unmask", lying)
    server, found = run(sites)
    assert close(sites, found, server.survivors)
    few = Sites(threshold=5)
    with pytest.raises(SecureError, match="right shares"):
        run(few)


class TestParts:
    @given(st.binary(min_size=32, max_size=32), st.integers(2, 6), st.integers(0, 3))
    def test_shares(self, secret, threshold, more):
        shares = split(secret, threshold, threshold + more)
        some = dict(list(shares.items())[more:])
        assert combine(some) == secret
        assert recovered(shares, threshold, bytes, secret) == secret
        with pytest.raises(SecureError):
            recovered(dict(list(some.items())[1:]), threshold, bytes, secret)

    @given(
        st.integers(1, 50),
        st.floats(1e-3, 1e6),
        st.lists(st.floats(-1, 1), min_size=1, max_size=20),
        st.sampled_from([16, 24, 32, 64]),
    )
    def test_fixed_point_sums_are_within_the_stated_error(self, sites, bound, shares, word_bits):
        if sites * (bound + 0.5) >= 2 ** (word_bits - 1):  # not even without fractional bits
            with pytest.raises(UndriftError, match=f"do not fit into words of {word_bits} bits"):
                FixedPoint.finest(sites, bound, word_bits)
            return
        coding = FixedPoint.finest(sites, bound, word_bits)
        assert coding.error <= 4 * sites**2 * bound / 2**word_bits  # no bit is wasted
        values = bound * np.array(shares)
        one = coding.encode(values)
        with np.errstate(over="ignore"):
            words = one * one.dtype.type(sites)
        assert np.abs(coding.decode(words) - sites * values).max() <= coding.error * (1 + 1e-9) + (
            sites * bound * 2.0**-52
        )

    def test_what_does_not_fit_is_refused(self):
        coding = FixedPoint.finest(5, 10.0)
        assert coding.decode(coding.encode(np.array([10.0, -10.0]))).tolist() == [10.0, -10.0]
        for wrong in (10.1, -11.0, float("nan"), float("inf")):
            with pytest.raises(UndriftError, match="raise 'range'"):
                coding.encode(np.array([0.0, wrong]))
        with pytest.raises(UndriftError, match="do not fit into words of 64 bits"):
            FixedPoint(5, 10.0, 58)

    @pytest.mark.parametrize("word_bits", [16, 24, 32, 64])
    def test_one_more_fractional_bit_would_wrap_around(self, word_bits):
        """The largest sum is right; with a bit more, it could come out with the other sign."""
        coding = FixedPoint.finest(5, 10.0, word_bits)
        with np.errstate(over="ignore"):
            words = coding.encode(np.array([10.0, -10.0]))
            words = words * words.dtype.type(5)
        assert coding.decode(words).tolist() == [50.0, -50.0]
        with pytest.raises(UndriftError, match="do not fit"):
            FixedPoint(5, 10.0, coding.bits + 1, word_bits)

    @pytest.mark.parametrize("word_bits", [16, 24, 32, 64])
    def test_words_travel_in_as_many_bytes_as_they_have(self, word_bits):
        coding = FixedPoint.finest(5, 10.0, word_bits)
        rng = np.random.default_rng(0)
        words = {"x": rng.integers(0, 2**word_bits, 1000, dtype=np.uint64).astype(
            WORD_TYPES[word_bits]
        )}  # fmt: skip
        sent = as_tensors(words, coding)
        assert sent["x"].numel() * sent["x"].element_size() == 1000 * word_bits // 8
        spec = words_spec(coding, 1000)
        assert (spec.dtype, spec.shape) == (sent["x"].dtype, tuple(sent["x"].shape))
        assert np.array_equal(as_words(sent, coding)["x"], words["x"])

    def test_masks_cancel_and_are_those_of_chacha20(self):
        # RFC 8439, appendix A.1, test vector 1: the key and the nonce are zero.
        first = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
        words = np.zeros(300_000, dtype=np.uint64)
        add_mask(words, bytes(32), 1)
        assert words[:4].tobytes() == first
        assert len(np.unique(words)) == len(words)
        add_mask(words, bytes(32), -1)
        assert not words.any()

    def test_two_sites_agree_on_a_seed_for_each_purpose(self):
        one, two = KeyPair(), KeyPair()
        assert agreed_seed(one.private, two.public, b"x") == agreed_seed(
            two.private, one.public, b"x"
        )
        assert agreed_seed(one.private, two.public, b"x") != agreed_seed(
            one.private, two.public, b"y"
        )
        assert public_key(one.private) == one.public
        with pytest.raises(SecureError, match="public key is invalid"):
            agreed_seed(one.private, bytes(32), b"x")

    def test_sealed_bytes(self):
        sealed = seal(bytes(32), b"content", b"about")
        assert opened(bytes(32), sealed, b"about") == b"content"
        for key, text, about in (
            (b"1" * 32, sealed, b"about"),
            (bytes(32), sealed[:-1], b"about"),
            (bytes(32), sealed, b"other"),
            (bytes(32), b"", b"about"),
        ):
            with pytest.raises(SecureError, match="changed on its way"):
                opened(key, text, about)

    def test_thresholds(self):
        assert [default_threshold(n) for n in (3, 5, 6, 10)] == [3, 4, 5, 7]
        for names, threshold in ((NAMES, 2), (NAMES, 6), (NAMES[:2], 2), (("a", "a", "b"), 2)):
            with pytest.raises(SecureError):
                Attempt("run", 0, 0, names, threshold)
