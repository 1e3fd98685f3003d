"""`elasticctl store certs`: a certificate authority for one etcd cluster, its certificates, and instructions for using
them.

The program openssl makes the files. Existing files are kept, so the command may be repeated for another member.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import OperatorError, UserError

DAYS = 3650
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
OPERATOR = "root"  # etcd's own name for the user with all rights
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Member:
    """A machine with etcd, and the addresses by which others reach it."""

    name: str
    addresses: tuple[str, ...]

    @classmethod
    def parsed(cls, text: str) -> Member:
        """Return the member in NAME=ADDRESS[,ADDRESS...]. Raises UserError."""
        name, _, given = text.partition("=")
        addresses = tuple(given.split(","))
        if not _NAME.fullmatch(name) or not all(_is_ip(each) or _NAME.fullmatch(each) for each in addresses):
            raise UserError(f"{text!r} is no member: say NAME=ADDRESS, such as c1=10.0.0.1, or c1=10.0.0.1,c1.lab.org")
        return cls(name, addresses)

    @property
    def host(self) -> str:
        """Return the first address, as it stands in a URL."""
        return f"[{self.addresses[0]}]" if ":" in self.addresses[0] else self.addresses[0]


def make(directory: Path, members: Sequence[Member], controllers: Sequence[str]) -> list[Path]:
    """Make the missing files and return them. Raises UserError, OperatorError."""
    if not members:
        raise UserError("which machines have etcd? Say --member NAME=ADDRESS for each, such as --member c1=10.0.0.1")
    for name in controllers:
        if not _NAME.fullmatch(name) or name == OPERATOR:
            raise UserError(
                f"{name!r} is no name of a controller: letters, digits, dots and dashes, and not {OPERATOR}"
            )
    for kind, given in (("member", [one.name for one in members]), ("controller", list(controllers))):
        if len(set(given)) != len(given):
            raise UserError(f"a {kind} is named twice: {', '.join(given)}")
    if shutil.which("openssl") is None:
        raise OperatorError("the program openssl is missing: apt-get install openssl")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o077:
            raise OperatorError(f"{directory}: is open to others; `chmod 700` it")
        with tempfile.TemporaryDirectory(dir=directory) as work:
            made = _authority(directory, Path(work))
            for member in members:
                names = ",".join(f"{'IP' if _is_ip(each) else 'DNS'}:{each}" for each in member.addresses)
                uses = f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={names}\n"
                made += _signed(directory, Path(work), f"member-{member.name}", f"member-{member.name}", uses)
                _check_addresses(directory / f"member-{member.name}.pem", member)
            for name in (*controllers, OPERATOR):
                made += _signed(directory, Path(work), f"client-{name}", name, "extendedKeyUsage=clientAuth\n")
    except OSError as error:
        raise OperatorError(f"{error.filename}: {error.strerror}") from None
    return made


def _authority(directory: Path, work: Path) -> list[Path]:
    cert, key = directory / "ca.pem", directory / "ca.key"
    if cert.exists() and key.exists():
        return []
    if signed := sorted(path.name for path in directory.glob("*.pem") if path != cert):
        lacking = key if cert.exists() else cert
        raise OperatorError(
            f"{lacking}: is missing, and {signed[0]} was signed with it: put it back, or use another directory"
        )
    _openssl("req", "-x509", *CURVE, "-days", str(DAYS), "-subj", "/CN=elasticctl etcd CA",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign",
             "-keyout", str(work / "ca.key"), "-out", str(work / "ca.pem"))  # fmt: skip
    return _placed(work, key, cert)


def _signed(directory: Path, work: Path, file: str, name: str, uses: str) -> list[Path]:
    """Make a key, and a certificate that names `name`, unless they exist."""
    cert, key = directory / f"{file}.pem", directory / f"{file}.key"
    if cert.exists() and key.exists():
        if _run("verify", "-CAfile", str(directory / "ca.pem"), str(cert)).returncode:
            raise OperatorError(
                f"{cert}: is not valid, or not signed by {directory / 'ca.pem'}: remove it, and call again"
            )
        return []
    request, uses_file = work / f"{file}.csr", work / f"{file}.ext"
    uses_file.write_text(f"basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\n{uses}")
    _openssl("req", *CURVE, "-subj", f"/CN={name}", "-keyout", str(work / key.name), "-out", str(request))
    _openssl("x509", "-req", "-in", str(request), "-CA", str(directory / "ca.pem"), "-CAkey", str(directory / "ca.key"),
             "-set_serial", str(secrets.randbits(120)), "-days", str(DAYS), "-extfile", str(uses_file),
             "-out", str(work / cert.name))  # fmt: skip
    return _placed(work, key, cert)


def _placed(work: Path, *files: Path) -> list[Path]:
    """Move the files into place, the key first: so a certificate never lacks its key."""
    for file in files:
        (work / file.name).chmod(0o600)
        (work / file.name).rename(file)
    return list(files)


def _check_addresses(cert: Path, member: Member) -> None:
    for each in member.addresses:
        shown = _run("x509", "-noout", "-in", str(cert), "-checkip" if _is_ip(each) else "-checkhost", each).stdout
        if "does match" not in shown:
            raise OperatorError(f"{cert}: is not for {each}: remove it, and call again for a new one")


def advice(directory: Path, members: Sequence[Member], controllers: Sequence[str], root: str) -> str:
    """Return instructions for the files, for people. `root`: prefix of the cluster's keys in etcd, such as
    /elasticctl/lab.
    """
    hosts = sorted({each for member in members for each in member.addresses if _is_ip(each)})
    every = ",".join(f"https://{member.host}:2379" for member in members)
    lines = ["On each machine with etcd, as /etc/etcd/{ca.pem,member.pem,member.key}, owner etcd, mode 0600:"]
    lines += [f"  {member.name}: ca.pem, member-{member.name}.pem, member-{member.name}.key" for member in members]
    lines += ["", "etcd's options there (in /etc/default/etcd as ETCD_CERT_FILE=... and so on):"]
    lines += [
        "  --cert-file /etc/etcd/member.pem --key-file /etc/etcd/member.key --trusted-ca-file /etc/etcd/ca.pem"
        " --client-cert-auth",
        "  --peer-cert-file /etc/etcd/member.pem --peer-key-file /etc/etcd/member.key --peer-trusted-ca-file /etc/etcd/ca.pem"
        " --peer-client-cert-auth",
    ]
    lines += [f"  {one.name}: --listen-client-urls https://{one.host}:2379 --advertise-client-urls https://{one.host}:2379"
              for one in members]  # fmt: skip
    lines += [
        "",
        f"Once, when etcd runs: a role that reaches the keys below {root}/ alone, and a user for each controller:",
    ]
    lines += [f"  export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={every} ETCDCTL_CACERT={directory}/ca.pem"]
    lines += [f"  export ETCDCTL_CERT={directory}/client-{OPERATOR}.pem ETCDCTL_KEY={directory}/client-{OPERATOR}.key"]
    lines += [
        "  etcdctl role add elasticctl",
        f"  etcdctl role grant-permission elasticctl --prefix=true readwrite {root}/",
    ]
    for name in controllers:
        lines += [f"  etcdctl user add {name} --no-password && etcdctl user grant-role {name} elasticctl"]
    lines += [
        f"  etcdctl user add {OPERATOR} --no-password && etcdctl user grant-role {OPERATOR} root",
        "  etcdctl auth enable",
        "",
        "On each controller, as /etc/elasticctl/etcd/{ca.pem,client.pem,client.key}, owner elasticctl, mode 0600:",
    ]
    lines += [f"  {name}: ca.pem, client-{name}.pem, client-{name}.key" for name in controllers]
    if hosts:
        lines += ["", "The firewall of each machine with etcd; add the controllers, if they are on other machines:"]
        lines += [
            "  nft add table inet etcd",
            "  nft add chain inet etcd input '{ type filter hook input priority filter - 1; }'",
            "  nft add rule inet etcd input iifname lo accept",
        ]
        for family in ("ip", "ip6"):
            if found := ", ".join(each for each in hosts if (":" in each) == (family == "ip6")):
                lines += [
                    f"  nft add rule inet etcd input tcp dport '{{ 2379, 2380 }}' {family} saddr '{{ {found} }}' accept"
                ]
        lines += ["  nft add rule inet etcd input tcp dport '{ 2379, 2380 }' drop"]
        lines += ["It is gone at the next boot, unless it is kept:"]
        lines += ["  nft list table inet etcd >> /etc/nftables.conf && systemctl enable nftables"]
    lines += [
        "",
        f"Keep {directory}/ca.key and client-{OPERATOR}.key off these machines: whoever has one owns the cluster.",
    ]
    return "\n".join(lines)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", *words], capture_output=True, text=True, check=False, umask=0o077)


def _openssl(*words: str) -> None:
    done = _run(*words)
    if done.returncode:
        raise OperatorError(f"openssl {words[0]} has failed: {done.stderr.strip()}")
