#!/usr/bin/env bash
# Make the environment that pyqd is built and run in: .venv beside this directory.
#
# Needs a Python of at least 3.10 with venv and its headers, a C compiler and make. What is missing is installed with
# apt-get where that exists and the user is root; elsewhere it is named and the script ends with status 1.
#
# With --to-compile it installs no more than compiling takes: the rest can be installed meanwhile.
# With --with EXTRA it adds the packages of one extra of pyproject.toml, and none of pyqd's own.
# With --for-tests it adds what tests, benchmarks and checks need beside: packages, and the programs that tests call.
# Spark among them is a download of 500 MB, which the daemon does without.
# With --for-site it installs no more than `make site` takes; it needs no compiler.
#
# PYTHON names the interpreter (python3); CC the C compiler (the one that Python was built with).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON=${PYTHON:-python3}
VENV=.venv

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$@" >&2; exit 1; }

have_python() { "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
have_venv() { "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; }

compiler() {
    printf '%s' "${CC:-$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}"
}

include_directory() { "$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }

# Return whether a program of these lines compiles: checks the compiler, its C library and the headers at once.
compiles() {
    local source=$1
    # The compiler may be a command with arguments, such as "gcc -pthread", so it is split on purpose.
    # shellcheck disable=SC2046
    printf '%s\n' "$source" | $(compiler) -I"$(include_directory)" -x c -fsyntax-only - 2>/dev/null
}

have_compiler() { compiles '#include <stdio.h>'; }
# Without a compiler the file itself must do as evidence.
have_headers() {
    compiles '#include <Python.h>' || { ! have_compiler && [[ -e $(include_directory)/Python.h ]]; }
}

# Debian has one package of headers and one of venv for each version. They serve its own interpreter only: one that was
# built by hand, or by a version manager, brings both or must be built again.
debian_package() {
    local what=$1
    "$PYTHON" - "$what" <<'END'
import os
import sys

if os.path.realpath(sys.executable).startswith("/usr/bin/"):
    print("python%d.%d-%s" % (*sys.version_info[:2], sys.argv[1]))
END
}

# Notes that something is missing, and the Debian packages that bring it, if any do.
lacks() {
    missing+=("$1")
    shift
    [[ $# -gt 0 ]] && packages+=("$@") || curable=no
}

find_missing() {
    missing=() packages=() curable=yes
    if [[ $for_tests == yes ]]; then
        command -v curl >/dev/null || lacks curl curl
        return
    fi
    if ! have_python; then
        # A package name chosen by the user is not the distribution's default.
        local brought=()
        [[ $PYTHON == python3 ]] && brought=(python3 python3-venv python3-dev)
        lacks "Python 3.10 or newer ('$PYTHON' is none; PYTHON names another)" "${brought[@]}"
        command -v cc >/dev/null || lacks "a C compiler" build-essential
    else
        # Unquoted on purpose: no package, no argument.
        # shellcheck disable=SC2046
        have_venv || lacks "the venv and ensurepip modules of $PYTHON" $(debian_package venv)
        [[ $for_site == no ]] || return 0
        have_compiler ||
            lacks "a C compiler with the C library's headers ('$(compiler)' does not do; CC names another)" build-essential
        # shellcheck disable=SC2046
        have_headers || lacks "the C headers of $PYTHON (Python.h)" $(debian_package dev)
    fi
    command -v make >/dev/null || lacks "make" make
}

explain_missing() {
    local lines=("these are missing:" "${missing[@]/#/  - }")
    [[ ${#packages[@]} -eq 0 ]] || lines+=("on Debian and Ubuntu, as root: apt-get install ${packages[*]}")
    die "${lines[@]}"
}

install_missing() {
    find_missing
    [[ ${#missing[@]} -eq 0 ]] && return
    if [[ $(id -u) -ne 0 || $curable == no ]] || ! command -v apt-get >/dev/null; then
        explain_missing
    fi
    say "installing ${packages[*]} by apt-get (a minute)"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || die "apt-get update failed; needed: ${packages[*]}"
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null || die "apt-get could not install: ${packages[*]}"
    hash -r
    find_missing
    [[ ${#missing[@]} -eq 0 ]] || explain_missing
}

# A page of docs/how-to publishes from PHP; its test is skipped without PHP.
install_php() {
    command -v php >/dev/null && return
    if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
        say "no php here: the test that publishes from PHP will be skipped"
        return
    fi
    say "installing php-cli and php-curl"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -y -q --no-install-recommends php-cli php-curl; } >/dev/null ||
        say "apt-get could not install php: the test that publishes from PHP will be skipped"
    hash -r
}

# The pages of the web admin are tested in a browser.
install_browser() {
    command -v chromium-headless-shell >/dev/null && return
    if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
        command -v chromium >/dev/null ||
            say "no chromium here: the tests of the web admin's pages will be skipped"
        return
    fi
    say "installing chromium (a minute, 300 MB)"
    export DEBIAN_FRONTEND=noninteractive
    # The shell without windows takes half the processor time; not every distribution has it.
    {
        apt-get update -q &&
            { apt-get install -y -q --no-install-recommends chromium-headless-shell fonts-noto-cjk ||
                command -v chromium || apt-get install -y -q --no-install-recommends chromium fonts-noto-cjk; }
    } >/dev/null ||
        say "apt-get could not install chromium: the tests of the web admin's pages will be skipped"
    hash -r
}

# Tests of traces start their own servers of PostgreSQL and MariaDB; without them they are skipped. No service is started
# here: the policy tells Debian's scripts so, and the cluster that the package of PostgreSQL makes is removed again.
install_databases() {
    local wanted=()
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null || wanted+=(postgresql)
    PATH=$PATH:/usr/sbin command -v mariadbd >/dev/null || wanted+=(mariadb-server-core)
    [[ ${#wanted[@]} -gt 0 ]] || return 0
    if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
        say "no ${wanted[*]} here: tests of traces in these databases will be skipped"
        return
    fi
    say "installing ${wanted[*]} (half a minute)"
    export DEBIAN_FRONTEND=noninteractive
    local clusters policy=/usr/sbin/policy-rc.d own_policy=no
    clusters=$(echo /etc/postgresql/*/main)
    if [[ ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        own_policy=yes
    fi
    { apt-get update -q && apt-get install -y -q --no-install-recommends "${wanted[@]}"; } >/dev/null ||
        say "apt-get could not install ${wanted[*]}: tests of traces in these databases will be skipped"
    [[ $own_policy == no ]] || rm -f $policy
    local directory
    for directory in /etc/postgresql/*/main; do
        if [[ -d $directory && " $clusters " != *" $directory "* ]]; then
            pg_dropcluster "$(basename "$(dirname "$directory")")" main || true
        fi
    done
}

make_venv() {
    if [[ -x $VENV/bin/python ]] && "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        return
    fi
    say "making $VENV with $("$PYTHON" --version) (3 s)"
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV"
}

pip_install() {
    "$VENV/bin/python" -m pip --disable-pip-version-check install -q "$@"
}

# Without --compile, modules are compiled to bytecode when they are first imported, and most never are.
install_compiler() {
    say "installing the packages that pyqd is built with (3 s, more on a slow network)"
    pip_install --no-compile 'setuptools>=77' 'Cython>=3.1'
}

# The package is installed as editable and without its extensions; those are built in place by a step of their own,
# which stays incremental. A build isolated from .venv would fetch setuptools and Cython each time.
install_packages() {
    say "installing the packages that pyqd needs (10 s, more on a slow network)"
    PYQD_SKIP_EXT=1 pip_install --no-compile --no-build-isolation -e scripts/build/client -e '.[server,examples,admin,trace]'
}

# pip could install the extra only together with pyqd's dependencies.
packages_of() {
    "$VENV/bin/python" - "$1" <<'END'
import sys

try:
    import tomllib
except ModuleNotFoundError:
    from pip._vendor import tomli as tomllib

with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
END
}

install_extra() {
    local packages
    mapfile -t packages < <(packages_of "$1")
    [[ ${#packages[@]} -gt 0 ]] || die "pyproject.toml has no extra '$1'"
    say "installing ${packages[*]} (5 s, more on a slow network)"
    pip_install --no-compile "${packages[@]}"
}

install_test_packages() {
    say "installing what tests, benchmarks and checks need: Spark, Java, clients of NSQ (a minute, 500 MB)"
    PYQD_SKIP_EXT=1 pip_install --no-build-isolation -e scripts/build/client -e '.[dev,spark-java]'
}

# ruff lays out signatures.
install_site_packages() {
    say "installing the packages that make the web site of the manual (half a minute, 170 MB)"
    pip_install 'mkdocs>=1.6,<2' 'mkdocs-material>=9.6,<10' 'mkdocstrings>=1.0,<2' 'mkdocstrings-python>=2.0,<3' 'ruff>=0.6'
}

for_tests=no for_site=no
[[ ${1:-} != --for-tests ]] || for_tests=yes
[[ ${1:-} != --for-site ]] || for_site=yes
if [[ $for_tests == yes ]]; then
    install_missing
    install_php
    install_browser
    install_databases
    install_test_packages
elif [[ ${1:-} == --with ]]; then
    install_extra "$2"
elif [[ $for_site == yes ]]; then
    install_missing
    make_venv
    install_site_packages
elif [[ ${1:-} == --to-compile ]]; then
    install_missing
    make_venv
    install_compiler
else
    [[ -x $VENV/bin/cython ]] || scripts/build/setup.sh --to-compile
    install_packages
fi
