/* Loops over atoms in LAMMPS's threads. */

#ifndef TORCHMDX_THREADS_H
#define TORCHMDX_THREADS_H

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

namespace torchmdx {

/* Fewer atoms than this in a thread are done before it has started. */
constexpr std::size_t FEWEST_IN_THREAD = 20000;

/* Calls work(first, last) for parts of 0 to count, in at most `threads` threads. */
template <class Work> void in_parts(std::size_t count, int threads, Work work)
{
  const std::size_t parts = std::max<std::size_t>(1, std::min<std::size_t>(threads, count / FEWEST_IN_THREAD));
  std::vector<std::thread> others;
  for (std::size_t part = 1; part < parts; part++)
    others.emplace_back(work, count * part / parts, count * (part + 1) / parts);
  work(0, count / parts);
  for (auto &other : others) other.join();
}

}    // namespace torchmdx

#endif
