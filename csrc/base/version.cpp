#include "base/version.h"

namespace gma {

const char* version() { return GMA_VERSION; }
const char* git_id() { return GMA_GIT_ID; }

}  // namespace gma
