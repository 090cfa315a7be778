#!/bin/sh
# Makes ready what `make` needs, and does nothing when it is ready:
#   .venv from the lock files, a JDK for Spark, an archive of the classes that it loads, the joins' compiled kernels, and with
#   "test" also MariaDB and a browser.
# Writes .venv/environment, which says where the JDK and the archive are, and how the JVM compiles; the Makefile reads it.
# Settings: PYTHON (a Python 3.11), JAVA_HOME (a JDK 17 or later).
set -eu
cd "$(dirname "$0")"
venv=.venv
stamp=$venv/.ready
archive=$venv/spark.jsa
compiled=$venv/kernels

say() { printf '%s\n' "bootstrap: $*" >&2; }
die() { say "$@"; exit 1; }
is_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }

apt_install() {
    say "installing $* with apt"
    log=$(mktemp)
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "apt could not install $*. Install it yourself, then run this again."
    fi
    rm -f "$log"
}

find_python() {
    for candidate in ${PYTHON:-python3.11 /usr/bin/python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    if ! python=$(find_python); then
        [ -z "${PYTHON:-}" ] && is_root || die "needs a Python 3.11, which the lock file was made for; ${PYTHON:-python3} is none." \
            "On Debian 12: apt-get install python3 python3-venv. Elsewhere, name one: PYTHON=/path/to/python3.11"
        apt_install python3 python3-venv
        python=$(find_python) || die "this system's python3 is not 3.11; name one: PYTHON=/path/to/python3.11"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        is_root || die "$python cannot make a virtual environment. Install it: apt-get install python3-venv"
        apt_install python3-venv
    fi
    say "creating $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
}

# A package index or certificates that pip was told of hold for uv too.
follow_pip() {
    index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
    certificates=${PIP_CERT:-$("$venv/bin/python" -m pip config get global.cert 2>/dev/null || true)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        export UV_DEFAULT_INDEX="$index"
    fi
    if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
        export UV_SYSTEM_CERTS=1  # this machine may trust authorities that uv does not bring along
    fi
    if [ -n "$certificates" ] && [ -z "${SSL_CERT_FILE:-}" ]; then
        export SSL_CERT_FILE="$certificates"
    fi
}

install_packages() {
    py=$venv/bin/python
    locks="-r requirements.lock -r requirements-dev.lock -r requirements-docs.lock"
    say "installing $(cat requirements.lock requirements-dev.lock requirements-docs.lock | grep '==' | sort -u | wc -l) pinned packages"
    "$py" -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r requirements-tools.lock \
        || die "pip could not install the tools of requirements-tools.lock; is a package index reachable?"
    follow_pip
    if ! "$venv/bin/uv" pip install -q --python "$py" --require-hashes --no-deps --no-build-isolation $locks; then
        say "uv failed; trying pip, which takes some minutes"
        "$py" -m pip install -q --disable-pip-version-check --require-hashes --no-deps --no-build-isolation --use-pep517 \
            $locks \
            || die "the packages could not be installed; is a package index reachable?"
    fi
    "$py" -m pip install -q --disable-pip-version-check --no-index --no-build-isolation --no-deps -e .
}

is_jdk() {  # whether $1 is a JDK 17 or later with the module that Spark needs
    [ -x "$1/bin/java" ] && "$1/bin/java" --list-modules 2>/dev/null | awk -F'[@.]' '
        /^java\.base@/ { split($0, v, "@"); old = v[2] + 0 < 17 }
        /^jdk\.incubator\.vector@/ { vector = 1 }
        END { exit old || !vector }'
}

find_jdk() {
    on_path=$(command -v java 2>/dev/null || true)
    [ -z "$on_path" ] || on_path=$(dirname "$(dirname "$(readlink -f "$on_path")")")
    for home in "${JAVA_HOME:-}" "$on_path" /usr/lib/jvm/*17* /usr/lib/jvm/*21* /usr/lib/jvm/*; do
        if [ -n "$home" ] && is_jdk "$home"; then
            echo "$home"
            return
        fi
    done
    return 1
}

write_environment() {
    if ! jdk=$(find_jdk); then
        is_root || die "Spark needs a JDK 17 or later with the module jdk.incubator.vector (a stripped JRE lacks it)." \
            "Install openjdk-17-jdk-headless, or set JAVA_HOME."
        apt_install openjdk-17-jdk-headless
        jdk=$(find_jdk) || die "no usable JDK found after installing openjdk-17-jdk-headless; set JAVA_HOME."
    fi
    {
        echo "unset SPARK_HOME"  # pyspark's own
        echo "unset PYTHONDONTWRITEBYTECODE"  # or every process compiles every module again
        echo "export JAVA_HOME='$jdk'"
        echo "export PYSPARK_PYTHON='$PWD/$venv/bin/python'"
        echo "export PATH='$PWD/$venv/bin':\"\$PATH\""
        # A load's own JVM code runs seldom, its loops over rows long: C2 comes in after forty times as many calls as by default.
        # It keeps some 40 MB, as rows do not enter it: the collector of one thread and a small first heap take 140 MB less.
        # NeverActAsServerClassMachine chooses that collector where nobody names one, and would choose C1 alone but for
        # TieredCompilation. An archive that is mapped at its own address (ArchiveRelocationMode) is not copied to another one,
        # which takes 100 MB and 0.15 s. It has a base beside it, see semistream.streaming.archive.
        echo "export SPARK_SUBMIT_OPTS=\"-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000" \
             "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000" \
             "-Xms64m -XX:NewSize=10m -XX:+NeverActAsServerClassMachine -XX:+TieredCompilation" \
             "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0 \${SPARK_SUBMIT_OPTS:-}\""
    } > "$venv/environment"
    rm -f "$archive"  # of another JDK, or of other jars
}

archive_classes() {
    say "archiving the classes that Spark loads, so that it starts sooner"
    if (. "$venv/environment" && "$venv/bin/python" -m semistream.streaming.archive "$archive") 2>"$archive.log"; then
        options="-XX:SharedArchiveFile='$PWD/$archive' -Xlog:cds*=off"  # of an archive that does not fit, no word either
        echo "export SPARK_SUBMIT_OPTS=\"$options \${SPARK_SUBMIT_OPTS:-}\"" >> "$venv/environment"
    else
        say "that failed, and is not tried again; see $archive.log"
        : > "$archive"
    fi
}

kernels() {  # what the files say that have compiled functions, and that compile them
    { grep -rl --include='*.py' njit include/semistream; echo include/semistream/machine_code.py; } 2>/dev/null \
        | LC_ALL=C sort | xargs cat 2>/dev/null | sha256sum
}

compile_kernels() {
    say "compiling the joins' kernels, so that no run waits for it"
    if ! (. "$venv/environment" && "$venv/bin/python" -m semistream.streaming.precompile) 2>"$compiled.log"; then
        say "that failed, and is not tried again; see $compiled.log. They are compiled when they are first needed."
    fi
    kernels > "$compiled"
}

test_programs() {
    missing=
    [ -x /usr/sbin/mariadbd ] || command -v mariadbd >/dev/null 2>&1 || missing="$missing mariadb-server"
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    command -v chromedriver >/dev/null 2>&1 || missing="$missing chromium-driver"
    [ -z "$missing" ] && return
    is_root || die "the tests need$missing. Install: apt-get install$missing"
    # The bare server has no service that would start and occupy MySQL's port.
    apt_install $(echo "$missing" | sed 's/mariadb-server/mariadb-server-core mariadb-client/')
}

key=$(cat bootstrap.sh requirements.lock requirements-dev.lock requirements-docs.lock requirements-tools.lock pyproject.toml | sha256sum | cut -c1-64)@$PWD
if [ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || [ ! -x "$venv/bin/python" ]; then
    make_venv
    install_packages
    write_environment
    printf '%s' "$key" > "$stamp"
fi
# A JDK may have gone, or another one been named, since.
recorded=$(sed -n "s/^export JAVA_HOME='\(.*\)'/\1/p" "$venv/environment" 2>/dev/null || true)
if [ -z "$recorded" ] || [ ! -x "$recorded/bin/java" ] || [ "${JAVA_HOME:-$recorded}" != "$recorded" ]; then
    write_environment
fi
if [ ! -e "$archive" ]; then
    archive_classes
fi
if [ "$(cat "$compiled" 2>/dev/null)" != "$(kernels)" ]; then
    compile_kernels
fi
if [ "${1:-}" = test ]; then
    test_programs
fi
