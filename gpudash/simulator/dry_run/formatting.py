"""Whether code requests a number only to display it: ``"%d of %d" % (right, count)``."""

from __future__ import annotations

import opcode
from types import FrameType

_BINARY = opcode.opmap.get("BINARY_OP")
"""Any binary operator, since Python 3.11; its argument says which one."""

_SIGNS = [sign for _name, sign in getattr(opcode, "_nb_ops", ())]

_REMAINDERS = [opcode.opmap[name] for name in ("BINARY_MODULO", "INPLACE_MODULO") if name in opcode.opmap]


def fills_in_text(caller: FrameType) -> bool:
    """Whether the code that converts a number to an integer is at a ``%``.

    A number read out of a tensor handles the operator itself, so the caller must be a string on its left.

    Args:
        caller: the frame that converts the number.
    """
    code = caller.f_code.co_code
    place = caller.f_lasti
    if place < 0:
        return False
    if code[place] == _BINARY:
        return _SIGNS[code[place + 1]] in ("%", "%=")
    return code[place] in _REMAINDERS
