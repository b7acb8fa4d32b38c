"""Takes BYTES of memory, touches each page, gives all of it back but a page in every 2 MiB, and says "held".

A virtual machine may report free memory to its host, which takes it away; the next use of each page then waits for the host
(on a nested one 8 us for 4 KiB, which is more than storing a few messages costs). Only large free blocks are reported, and with a
page kept in each there are none. Ends when its input does.
"""

import mmap
import sys

PAGE = 4096
BLOCK = 2 << 20

size = int(sys.argv[1]) // BLOCK * BLOCK
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, PAGE):
    memory[at] = 1
for at in range(0, size, BLOCK):
    memory.madvise(mmap.MADV_DONTNEED, at + PAGE, BLOCK - PAGE)
print("held", flush=True)
sys.stdin.read()
