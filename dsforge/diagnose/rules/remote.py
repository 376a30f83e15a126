"""Reaching other machines: ssh, pdsh, names, ports, the rendezvous."""

from __future__ import annotations

from dsforge.diagnose.rule import Hit, Rule

_HOST = r"(?P<host>[\w\[][\w.:\[\]-]{0,80})"
_OTHER = r"(?P<other>\w[\w.-]{0,80})"
LATER = ("pdsh-exit", "first-host", "exit-code", "clients-missing")


def _whom(hits: tuple[Hit, ...]) -> dict[str, str]:
    """What the lines say, with the host that any of them names."""
    values = [{"other": "", "port": "", "port2": "", **hit.values} for hit in hits]
    named = next((v for v in values if v.get("host") or v["other"]), values[0])
    return {**named, "host": named.get("host") or named["other"] or "<host>"}


RULES = (
    Rule(
        "host-key-changed",
        ("remote host identification has changed", "has changed and you have requested strict"),
        rf"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for {_HOST} has changed",
        "the host key of a node is not the one remembered",
        "the machine was set up anew under the same address (or somebody answers for it)",
        "$ ssh-keygen -R <host>   # then, once, after checking the fingerprint:\n"
        "$ ssh-keyscan -H <host> >>~/.ssh/known_hosts",
        "OpenSSH sshconnect.c",
        confidence=0.95,
        explains=("host-key", *LATER),
    ),
    Rule(
        "host-key",
        ("host key verification failed", "no matching host key", "host key is known for"),
        rf"Host key verification failed|host key is known for {_HOST}",
        "ssh does not know the host key of a node, and nobody is there to say yes",
        "launchers call ssh without a terminal",
        "$ ssh-keyscan -H <host> >>~/.ssh/known_hosts   # for every host of the hostfile",
        "OpenSSH sshconnect.c",
        confidence=0.95,
        explains=LATER,
    ),
    Rule(
        "ssh-key-refused",
        ("permission denied (", "too many authentication failures"),
        rf"(?:(?P<user>[\w.-]{{1,40}})@)?{_HOST}: Permission denied \([\w,-]{{1,80}}\)|"
        r"Permission denied \(publickey|Too many authentication failures",
        "the node {host} does not accept this user's ssh key",
        "launchers log in without a password, on every host and not only the first",
        "$ ssh-copy-id {user}@{host}\n$ ssh -o BatchMode=yes {host} true   # must be silent",
        "OpenSSH sshconnect2.c",
        confidence=0.95,
        read=lambda hits: {**_whom(hits), "user": hits[0].values["user"] or "<user>"},
        explains=LATER,
    ),
    Rule(
        "ssh-refused",
        ("connection refused",),
        rf"ssh: connect to host {_HOST} port (?P<port>\d+): Connection refused",
        "no sshd answers on {host} port {port}",
        "sshd is not running there, or listens on another port (containers)",
        "$ systemctl start ssh   # on {host}\n$ deepspeed --ssh_port <its port> ...",
        "OpenSSH sshconnect.c; kubeflow/mpi-operator#549",
        confidence=0.95,
        explains=LATER,
    ),
    Rule(
        "ssh-timeout",
        ("connection timed out", "operation timed out", "no route to host", "connection to "),
        rf"ssh: connect to host {_HOST} port (?P<port>\d+): "
        r"(?:Connection timed out|Operation timed out|No route to host)|"
        rf"Connection to {_OTHER} port (?P<port2>\d+) timed out|timed out during banner exchange",
        "{host} does not answer on port {port}{port2}",
        "it is down, the address is wrong, or a firewall drops the packets",
        "$ ping -c1 {host}; nc -vz {host} {port}{port2}",
        "OpenSSH sshconnect.c",
        confidence=0.95,
        read=_whom,
        explains=LATER,
    ),
    Rule(
        "name-resolution",
        (
            "could not resolve hostname",
            "name or service not known",
            "cannot be retrieved (gai",
            "temporary failure in name resolution",
            "nodename nor servname",
        ),
        rf"Could not resolve hostname {_HOST}:|network addresses of \({_OTHER}, \d+\)|"
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname",
        "the name {host} does not resolve on this node",
        "names of a hostfile must resolve the same way on every node",
        "- {host} slots=8\n+ <its IP address> slots=8    # hostfile\n"
        "$ getent hosts {host}   # on every node",
        "OpenSSH sshconnect.c; torch c10d/socket.cpp; volcano-sh/volcano#2952",
        confidence=0.95,
        read=lambda hits: {
            "host": next(
                (
                    h.values["host"] or h.values["other"]
                    for h in hits
                    if h.values["host"] or h.values["other"]
                ),
                "of a host",
            )
        },
        explains=(*LATER, "master-unreachable"),
    ),
    Rule(
        "port-in-use",
        ("eaddrinuse", "address already in use"),
        r"(?:port:? ?(?P<port>\d+)[^\n]{0,120})?(?:EADDRINUSE|Address already in use)",
        "the rendezvous port {port} is taken on the first node",
        "an earlier run has not ended, or two jobs share a node",
        "$ ss -ltnp 'sport = :{port}'   # who has it\nMASTER_PORT=<a free port>\n"
        "$ deepspeed --master_port <a free port> ...",
        "torch c10d/socket.cpp",
        confidence=0.95,
        read=lambda hits: {
            "port": next((h.values["port"] for h in hits if h.values["port"]), "29500")
        },
        explains=("peer-lost", "clients-missing"),
    ),
    Rule(
        "master-unreachable",
        ("while trying to connect to", "tcp client failed to connect"),
        r"(?:The client socket has timed out after (?P<limit>\w+) while trying to connect to "
        rf"\({_HOST}, (?P<port>\d+)\)|TCP client failed to connect/validate to host "
        rf"{_OTHER}:(?P<port2>\d+))",
        "the first node ({host}, port {port}) was never reached",
        "rank 0 did not start, MASTER_ADDR is an address of another network (hostname -I gives a "
        "bridge first), or a firewall closes the port",
        "$ nc -vz {host} {port}   # from this node, while the job starts\n"
        "$ deepspeed --master_addr <address of node 0 in the shared network> ...",
        "torch c10d/socket.cpp; deepspeedai/DeepSpeed#5136",
        read=lambda hits: {
            "host": hits[0].values["host"] or hits[0].values["other"],
            "port": hits[0].values["port"] or hits[0].values["port2"],
        },
        explains=("clients-missing", "peer-lost", "gloo-timeout"),
    ),
    Rule(
        "clients-missing",
        ("clients joined",),
        r"Timed out after (?P<limit>\d+) seconds waiting for clients\. (?P<here>\d+)/(?P<all>\d+) "
        r"clients joined",
        "only {here} of {all} ranks came to the rendezvous within {limit} s",
        "a node did not start, died on the way, or has another world size",
        "$ pgrep -af train   # on every node: which one has no rank\n"
        "$ ssh <host> 'cd <run folder> && <python> -c \"import deepspeed\"'",
        "torch c10d/TCPStore.cpp",
        kind="stall",
        confidence=0.85,
    ),
    Rule(
        "first-host",
        ("was not reachable via ssh",),
        rf"Using hostfile at (?P<file>\S{{1,200}}) but host={_HOST} was not reachable via ssh",
        "the first host of the hostfile ({host}) cannot be reached over ssh",
        "DeepSpeed tries the first host only, and hides what ssh said",
        "$ ssh -o BatchMode=yes {host} true   # says what is wrong\n"
        "$ rm {file}   # where one node is meant",
        "deepspeed/launcher/runner.py:491",
        confidence=0.9,
    ),
    Rule(
        "pdsh-missing",
        ("launcher 'pdsh' not installed", "pdsh: command not found", "pdsh: not found"),
        r"launcher 'pdsh' not installed|pdsh: (?:command )?not found",
        "pdsh, which the deepspeed launcher starts nodes with, is not installed",
        "it is the default for more than one node",
        "$ apt-get install pdsh\n$ deepspeed --no_ssh --node_rank <n> --master_addr <address> ..."
        "   # on each node, without it",
        "deepspeed/launcher/runner.py:583",
        confidence=0.95,
    ),
    Rule(
        "pdsh-module",
        ('module not available: "exec"', "rcmd: socket: permission denied", "no such rcmd module"),
        r"rcmd: socket: Permission denied|No such rcmd module|module not available",
        "pdsh uses rsh instead of ssh",
        "its default transport was chosen when it was built",
        "PDSH_RCMD_TYPE=ssh",
        "pdsh src/pdsh/rcmd.c",
        explains=("pdsh-exit",),
    ),
    Rule(
        "pdsh-exit",
        ("ssh exited with exit code",),
        rf"{_HOST}: ssh exited with exit code (?P<code>\d+)",
        "the command on {host} ended with code {code}",
        "255 is ssh's own failure; any other code is of the program on that node",
        "$ ssh {host} true; echo $?   # 0, or what ssh says is the cause",
        "pdsh src/pdsh/dsh.c",
        kind="exit",
        confidence=0.5,
    ),
)
