"""What touches the insides of Numba and LLVM, or lets threads wait inside kernels; each part has a plain twin."""
