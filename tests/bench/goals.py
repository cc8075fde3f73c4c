"""Goals of the comparisons with peers: which kinds of processor have some, and which one is missed that was reached before."""

# Of no kind of processor so far (docs/perf.md says why): they are said among the others, but are no news.
NEVER_REACHED = {"decode, 16 samples, 2 prompts of 64", "decode, 8 samples of one prompt of 1024"}


def kind(instruction_sets):
    """The kind of a processor whose goals were set by measuring, or None."""
    if "amx_bf16" in instruction_sets:
        return "AMX"
    return "AVX-512 without AMX" if "avx512_bf16" in instruction_sets else None


def add_option(parser):
    parser.add_argument("--goals", metavar="FILE", help="gets a line for each goal that is missed although it was reached on this kind of processor before")


class Goals:
    def __init__(self, instruction_sets, file):
        self.kind = kind(instruction_sets)
        self.file = file

    def pick(self, amx, avx512):
        """The goal on this kind; None: it has none."""
        return {"AMX": amx, "AVX-512 without AMX": avx512}.get(self.kind)

    def judge(self, case, told, reached):
        """The word before a case; `told`: what the file says of it if it is news."""
        if not reached and self.file and self.kind and case not in NEVER_REACHED:
            with open(self.file, "a", encoding="utf-8") as out:
                out.write(told + "\n")
        return "reached " if reached else "MISSED  "
