#pragma once

extern const char* const kSourceDir;  ///< of the repository
extern const char* const kProgram;    ///< the program kvsim that was built with these tests
