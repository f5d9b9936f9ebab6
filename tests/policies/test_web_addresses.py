"""URLs in one reading, and the network addresses that they may lead to."""

from __future__ import annotations

import time
from ipaddress import ip_address

import pytest

from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.policies.web_addresses import HostRule, HostRules, WebAddress, find_refusal, parse_ip

_REFUSED = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.255.0.3 168.63.129.16 169.254.0.1 169.254.169.254
169.254.170.2 172.16.0.1 172.31.255.254 192.0.0.1 192.0.0.192 192.0.2.7 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.1 198.51.100.9
203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::169.254.169.254 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::8.8.8.8 100::1 2001::1 2001:0:7f00:1::1 2001:10::1 2001:20::1
2001:db8::1 2002:7f00:1::1 2002:a9fe:a9fe::1 2002:808:808::1 2600::5efe:10.0.0.1 2600::200:5efe:127.0.0.1 3fff::1 4000::1 5f00::1
fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 2600::1%eth0 fec0::1 ff02::1
"""
REFUSED = _REFUSED.split()

_PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.1.1.1 128.0.0.1 169.253.1.1 172.15.0.1 172.32.0.1 192.0.1.1
192.167.1.1 198.17.1.1 198.20.1.1 223.255.255.255 2001:4860:4860::8888 2606:4700::1111 2a00:1450:4001:80e::200e 64:ff9b::8.8.8.8
::ffff:8.8.8.8
"""
PUBLIC = _PUBLIC.split()


@pytest.mark.parametrize("text", REFUSED)
def test_an_address_that_is_not_public_is_refused(text: str) -> None:
    """Addresses of this machine, of private networks, of clouds and of tunnels are refused, in every way to write them."""
    assert find_refusal(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_not_refused(text: str) -> None:
    """The neighbors of refused networks are public, and an address that contains a public one is, too."""
    assert find_refusal(ip_address(text)) == ""


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com./a?b#c", "https://example.com/a?b"),
        ("http://example.com:80/", "http://example.com/"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("https://example.com?q=1", "https://example.com/?q=1"),
        ("https://münchen.de/straße", "https://xn--mnchen-3ya.de/stra%C3%9Fe"),
        ("https://example.com/%2e%2e/a%20b", "https://example.com/%2e%2e/a%20b"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("http://[2606:4700:0::1111]:81/", "http://[2606:4700::1111]:81/"),
        (" https://example.com/ ", "https://example.com/"),
        ("https://127.0.0.1#@example.com:pw@x/", "https://127.0.0.1/"),
        ("https://a_b.example.com/@x:y", "https://a_b.example.com/@x:y"),
    ],
)
def test_a_url_has_one_spelling(url: str, expected: str) -> None:
    """Scheme and host are lower case and ASCII, the port of the scheme is left out, and the fragment is dropped."""
    assert WebAddress.parse(url).url == expected
    assert WebAddress.parse(expected).url == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "javascript:alert(1)",
        "data:text/html,x",
        "http://",
        "http:///path",
        "https://user@example.com/",
        "https://user:pass@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com\\.evil.com/",
        "https://exa mple.com/",
        "https://example.com/a b",
        "https://example.com/\r\nHost: x",
        "https://example.com/\t",
        "https://example.com\x00.evil.com/",
        "https://example.com/\u2028",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:99999999/",
        "https://example.com:8a/",
        "https://example.com:/",
        "http://[::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[::1/",
        "http://::1/",
        "http://[v1.x]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://017700000001/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://127.0.0.01/",
        "http://0177.0.0.1/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        "http://.example.com/",
        "http://example..com/",
        "http://-example.com/",
        "http://exam$ple.com/",
        "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 150 + "com/",
        "http://example.com/" + "a" * 8_000,
        "http://①②⑦.0.0.1/x\\",
    ],
)
def test_another_url_is_refused(url: str) -> None:
    """Other schemes, user names, zones, unusual spellings of addresses and characters that programs read differently."""
    with pytest.raises(ToolFailed):
        WebAddress.parse(url)


def test_digits_of_other_scripts_are_not_another_spelling() -> None:
    """A host in full-width or circled digits is read as what the resolver would read, and that is checked."""
    assert WebAddress.parse("http://①②⑦.⓪.⓪.①/").host == "127.0.0.1"


@pytest.mark.parametrize(
    ("rule", "url", "is_allowed"),
    [
        ("example.com", "https://example.com/", True),
        ("example.com", "http://example.com/", True),
        ("EXAMPLE.com", "http://example.COM/", True),
        ("example.com", "https://example.com:8443/", False),
        ("example.com", "http://example.com:443/", False),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com:8443", "https://example.com/", False),
        ("example.com", "https://www.example.com/", False),
        ("example.com", "https://example.com.evil.org/", False),
        ("example.com", "https://evilexample.com/", False),
        ("*.example.com", "https://www.example.com/", True),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
        ("*", "https://anything.org/", True),
        ("*", "https://anything.org:22/", False),
        ("*:8080", "https://anything.org:8080/", True),
        ("[::1]:80", "http://[0:0::1]/", True),
        ("localhost:*", "http://localhost:8080/", True),
        ("localhost:*", "https://localhost/", True),
        ("localhost:*", "http://localhost.example.com:8080/", False),
        ("[::1]:*", "http://[::1]:9/", True),
    ],
)
def test_a_rule_allows_one_host_and_port(rule: str, url: str, *, is_allowed: bool) -> None:
    """A rule is for exactly this name, or for all below one, at the usual port or the one that it names."""
    assert HostRule.parse(rule).matches(WebAddress.parse(url)) is is_allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://example.com",
        "example.com/",
        "a b",
        "*.*.com",
        "*com",
        "x:y",
        "127.1",
        "**",
        "x:0",
        "x:00",
        "x:**",
        "x:",
    ],
)
def test_a_rule_that_could_mean_something_else_is_an_error(text: str) -> None:
    """What is no host, pattern or address is refused where the program says it."""
    with pytest.raises(ConfigurationError, match="not a host to allow"):
        HostRule.parse(text)


@pytest.mark.parametrize(
    ("ip", "is_allowed"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("fd12::1", True),
        ("::1", True),
        ("8.8.8.8", True),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("fd00:ec2::254", False),
        ("168.63.129.16", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("fe80::1", False),
    ],
)
def test_a_private_name_leads_to_no_service_of_a_cloud(ip: str, *, is_allowed: bool) -> None:
    """A host that may be private may be in a private network, but not at an address where clouds keep credentials."""
    rules = HostRules([], ["intranet.example:8080"])
    address = WebAddress.parse("http://intranet.example:8080/")
    rules.check(address)
    if is_allowed:
        rules.check_ip(address, parse_ip(ip))
    else:
        with pytest.raises(ToolFailed, match="may not be reached"):
            rules.check_ip(address, parse_ip(ip))


def test_only_the_named_host_may_be_private() -> None:
    """Another port, and another name at the same address, may not; a pattern cannot be private."""
    rules = HostRules(["*", "*:8081"], ["127.0.0.1:8080"])
    rules.check_ip(WebAddress.parse("http://127.0.0.1:8080/"), parse_ip("::ffff:127.0.0.1"))
    for url in ("http://127.0.0.1/", "http://127.0.0.1:8081/", "http://localhost/", "http://example.com/"):
        with pytest.raises(ToolFailed, match="may not be reached: this machine"):
            rules.check_ip(WebAddress.parse(url), parse_ip("127.0.0.1"))
    with pytest.raises(ConfigurationError, match="named in full"):
        HostRules([], ["*.internal"])
    with pytest.raises(ConfigurationError, match="hosts are a list"):
        HostRules("example.com")


@pytest.mark.parametrize("piece", ["a.", "ü.", "@", ":", "[", "%", "//", "\u0301", "a" * 60 + "."])
def test_long_urls_take_no_time(piece: str) -> None:
    """A URL of a million characters is refused at once."""
    started = time.process_time()
    for url in ("https://" + piece * 1_000_000, "https://" + piece * (7_000 // len(piece))):
        with pytest.raises(ToolFailed):
            WebAddress.parse(url)
    assert time.process_time() - started < 1
