// Which build this is. The version is written in pyproject.toml alone.
#pragma once

namespace gma {

const char* version();  // "1.2.3"
const char* git_id();   // the commit's first 12 digits, or "" where there was no repository

}  // namespace gma
