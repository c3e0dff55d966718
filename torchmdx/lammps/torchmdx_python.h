/* The Python of this process; one is started where LAMMPS's own program runs. */

#ifndef TORCHMDX_LAMMPS_PYTHON_H
#define TORCHMDX_LAMMPS_PYTHON_H

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sstream>
#include <string>

/* The interpreter with torchmdx, unless the environment variable of this name says another. */
#ifndef TORCHMDX_PYTHON
#define TORCHMDX_PYTHON "python3"
#endif

namespace torchmdx {

template <class Function> Function *symbol(const char *name)
{
  return reinterpret_cast<Function *>(dlsym(RTLD_DEFAULT, name));
}

inline std::string python_name()
{
  const char *given = getenv("TORCHMDX_PYTHON");
  return given ? given : TORCHMDX_PYTHON;
}

/* Whether code ran without an exception, which is printed otherwise. */
inline bool run_python(const std::string &code)
{
  const auto state = symbol<int()>("PyGILState_Ensure")();
  const int failed = symbol<int(const char *, void *)>("PyRun_SimpleStringFlags")(code.c_str(), nullptr);
  symbol<void(int)>("PyGILState_Release")(state);
  return !failed;
}

/* What interpreter.py prints about an interpreter: its shared library, its prefix, and code that makes another like it.
   -P: Python files in the folder of the run are not modules. */
inline std::string ask_interpreter(const std::string &name)
{
  std::string quoted, found;
  for (const char c : name) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE *pipe = popen(("'" + quoted + "' -P -m torchmdx.lammps.interpreter").c_str(), "r");
  if (!pipe) return "";
  char buffer[4096];
  while (fgets(buffer, sizeof buffer, pipe)) found += buffer;
  pclose(pipe);
  return found;
}

/* Starts Python if this process has none. Returns why that failed, or an empty string. */
inline std::string start_python()
{
  auto initialized = symbol<int()>("Py_IsInitialized");
  if (initialized && initialized()) return "";
  std::istringstream answer(ask_interpreter(python_name()));
  std::string library, prefix, code;
  std::getline(answer, library);
  std::getline(answer, prefix);
  std::getline(answer, code);
  if (code.empty())
    return "pair_style torchmdx needs a Python that has torchmdx, got " + python_name() +
           ": set the environment variable TORCHMDX_PYTHON to its interpreter";
  if (!dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL))
    return "pair_style torchmdx needs a Python with a shared library, got " + python_name() + ": " + dlerror();
  const bool given = getenv("PYTHONHOME");
  if (!given) setenv("PYTHONHOME", prefix.c_str(), 1);
  symbol<void(int)>("Py_InitializeEx")(0);
  if (!given) unsetenv("PYTHONHOME");
  symbol<void *()>("PyEval_SaveThread")();    // so that any thread may take the lock
  return run_python(code) ? "" : python_name() + " could not be started inside of LAMMPS";
}

}    // namespace torchmdx

#endif
