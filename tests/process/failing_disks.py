"""Disks that are at fault, of single processes: a library that is loaded before libc has writes to a broker's commit
log fail with EIO.

It is so for each process whose command line has `--id NAME` while a file of that name lies in the folder. It needs a C
compiler.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char mark[4096];

__attribute__((constructor)) static void find_mark(void) {
    static char line[65536];
    const char *folder = getenv("FAILING_DISKS");
    int fd = open("/proc/self/cmdline", O_RDONLY);
    ssize_t size = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    line[size > 0 ? size : 0] = 0;
    for (char *word = line; folder && word < line + size; word += strlen(word) + 1) {
        char *next = word + strlen(word) + 1;
        if (!strcmp(word, "--id") && next < line + size) snprintf(mark, sizeof mark, "%s/%s", folder, next);
    }
}

static int fails(int fd) {
    char place[64], path[4096];
    if (!*mark || access(mark, F_OK)) return 0;
    snprintf(place, sizeof place, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(place, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
    if (!strstr(path, "/commitlog/")) return 0;
    errno = EIO;
    return 1;
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite");
    return fails(fd) ? -1 : real(fd, from, size, at);
}

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    return fails(fd) ? -1 : real(fd, from, size, at);
}

ssize_t pwritev(int fd, const struct iovec *from, int count, off_t at) {
    ssize_t (*real)(int, const struct iovec *, int, off_t) = dlsym(RTLD_NEXT, "pwritev");
    return fails(fd) ? -1 : real(fd, from, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *from, int count, off64_t at) {
    ssize_t (*real)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, "pwritev64");
    return fails(fd) ? -1 : real(fd, from, count, at);
}
"""


class FailingDisks:
    """`variables`: what a process needs in its environment for its disk to be able to fail."""

    def __init__(self, directory: Path) -> None:
        """Raises CalledProcessError."""
        self._folder = directory / "failing-disks"
        self._folder.mkdir()
        source, library = self._folder / "disks.c", self._folder / "disks.so"
        source.write_text(_SOURCE)
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True, timeout=120
        )
        self.variables = {"LD_PRELOAD": str(library), "FAILING_DISKS": str(self._folder)}

    def fail(self, name: str) -> None:
        (self._folder / name).touch()

    def replace(self, name: str) -> None:
        (self._folder / name).unlink()


def can_fail() -> bool:
    return shutil.which("cc") is not None
