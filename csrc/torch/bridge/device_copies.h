// Copies between devices in the no-sharing mode.
//
// PyTorch asks once for peer access and then lets kernels of one device read the other's memory.
// Memory of the no-sharing mode is mapped on its own device alone, so such a kernel would fault.
// Here a copy goes to and from memory of one device each and between them by cudaMemcpyPeerAsync,
// which needs no access.
#pragma once

namespace gma::bridge {

// From now on copy_() takes this way where either side is isolated. Once a process.
void install_device_copies();

}  // namespace gma::bridge
