/* neigh_modify exclude: a neural network has no energy of a pair that could be left out. */

#ifndef TORCHMDX_LAMMPS_EXCLUSIONS_H
#define TORCHMDX_LAMMPS_EXCLUSIONS_H

#include "atom.h"
#include "group.h"
#include "lammps.h"
#include "neighbor.h"
#include <mpi.h>
#include <string>
#include <vector>

namespace LAMMPS_NS {

/* All atoms are in group all but those that fix gcmc takes out to see what the energy would be without them. */
inline bool takes_part(const Atom *atom, int i)
{
  return atom->mask[i] & 1;
}

/* Whether groups have atoms of the potential, on any process. numbers: by atom type, 0 for types of other styles. */
inline std::vector<int> with_atoms(LAMMPS *lmp, const std::vector<int> &numbers, const std::vector<int> &groups)
{
  std::vector<int> found(groups.size() + 1, 0);
  const Atom *atom = lmp->atom;
  for (int i = 0; i < atom->nlocal; i++)
    if (numbers[atom->type[i]] && takes_part(atom, i))
      for (std::size_t k = 0; k < groups.size(); k++)
        if (atom->mask[i] & lmp->group->bitmask[groups[k]]) found[k] = 1;
  MPI_Allreduce(MPI_IN_PLACE, found.data(), found.size(), MPI_INT, MPI_MAX, lmp->world);
  return found;
}

/* What is excluded between atoms of the potential, as in the input; empty if nothing is. All processes call it. */
inline std::string excluded(LAMMPS *lmp, const std::vector<int> &numbers)
{
  const Neighbor *neighbor = lmp->neighbor;
  if (!neighbor->exclude) return "";
  for (int k = 0; k < neighbor->nex_type; k++)
    if (numbers[neighbor->ex1_type[k]] && numbers[neighbor->ex2_type[k]])
      return "type " + std::to_string(neighbor->ex1_type[k]) + " " + std::to_string(neighbor->ex2_type[k]);
  std::vector<int> groups;
  for (int k = 0; k < neighbor->nex_group; k++) {
    groups.push_back(neighbor->ex1_group[k]);
    groups.push_back(neighbor->ex2_group[k]);
  }
  for (int k = 0; k < neighbor->nex_mol; k++) groups.push_back(neighbor->ex_mol_group[k]);
  const std::vector<int> present = with_atoms(lmp, numbers, groups);
  const auto name = [&](int k) { return std::string(" ") + lmp->group->names[groups[k]]; };
  for (int k = 0; k < 2 * neighbor->nex_group; k += 2)
    if (present[k] && present[k + 1]) return "group" + name(k) + name(k + 1);
  for (int k = 0; k < neighbor->nex_mol; k++)
    if (present[2 * neighbor->nex_group + k])
      return std::string("molecule/") + (neighbor->ex_mol_intra[k] ? "intra" : "inter") + name(2 * neighbor->nex_group + k);
  return "";
}

}    // namespace LAMMPS_NS

#endif
