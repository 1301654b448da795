"""The bridge to PyTorch's own allocator interface: how it is compiled, kept and loaded.

It is C++ (csrc/torch/bridge/) that is compiled on the user's machine against the installed torch,
since PyTorch's class changes from version to version. `obtain()` finds or builds the module,
`load()` loads it, `wanted_door()` says whether it is asked for.
"""
