"""Takes the kernel itself out of a bzImage: extract_vmlinux.py VMLINUZ VMLINUX.

qemu starts an ELF kernel at once (PVH), where a bzImage would first decompress itself, slowly, as it is
emulated.
"""

import pathlib
import struct
import subprocess
import sys

# Offsets of the boot protocol: Documentation/arch/x86/boot.rst.
SETUP_SECTORS, PAYLOAD = 0x1F1, 0x248
TOOLS = {
    b"\x1f\x8b": ["gzip", "-dc"],
    b"\xfd7": ["xz", "-dc", "--single-stream"],
    b"\x28\xb5": ["zstd", "-dc"],
}


def main() -> None:
    image = pathlib.Path(sys.argv[1]).read_bytes()
    offset, length = struct.unpack_from("<II", image, PAYLOAD)
    start = ((image[SETUP_SECTORS] or 4) + 1) * 512 + offset
    payload = image[start : start + length]
    tool = TOOLS.get(payload[:2])
    if tool is None:
        sys.exit(f"{sys.argv[1]}: packed in an unknown way")
    # The length of the kernel follows the packed data, which the tools complain about.
    kernel = subprocess.run(tool, input=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    if kernel[:4] != b"\x7fELF":
        sys.exit(f"{sys.argv[1]}: no kernel in it, or {tool[0]} is missing")
    pathlib.Path(sys.argv[2]).write_bytes(kernel)


if __name__ == "__main__":
    main()
