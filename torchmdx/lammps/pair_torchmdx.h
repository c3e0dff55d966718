/* pair_style torchmdx MODEL [precision P] [device D] [charge Q]; pair_coeff * * H O ... */

#ifdef PAIR_CLASS
// clang-format off
PairStyle(torchmdx,PairTorchmdx);
// clang-format on
#else

#ifndef TORCHMDX_LAMMPS_PAIR_H
#define TORCHMDX_LAMMPS_PAIR_H

#include "pair.h"
#include "torchmdx_plugin.h"
#include <string>
#include <vector>

namespace LAMMPS_NS {

/* The atoms of this process and the ghosts around it go to a DomainStep in Python; forces on ghosts return to their
   owners by LAMMPS's reverse communication. LAMMPS builds no list of neighbours. Along directions that are not divided
   among processes there are no ghosts: the potential is periodic there. */
class PairTorchmdx : public Pair {
 public:
  PairTorchmdx(class LAMMPS *);
  ~PairTorchmdx() override;
  void settings(int, char **) override;
  void coeff(int, char **) override;
  void init_style() override;
  double init_one(int, int) override;
  void compute(int, int) override;
  int pack_forward_comm(int, int *, double *, int, int *) override;
  void unpack_forward_comm(int, int, double *) override;
  void add_tally_callback(class Compute *) override;

 private:
  int session = -1;
  double reach = 0, cutoff = 0;            // Å
  std::vector<int> numbers;                // by atom type; 0: not an atom of this potential
  bool assigned = false, folded[3] = {false, false, false};
  int num_owned = 0;
  std::vector<int> kept;                   // LAMMPS's indices of the atoms in the order that Python has
  std::vector<int> types, kept_hops;       // types of all atoms and ghosts when these were chosen; hops of `kept`
  long long num_total = 0;                 // atoms of the potential in the whole system
  std::vector<double> crossed;             // [N,3] periodic boundaries that lie between a ghost and its original
  double *inputs = nullptr;

  int place_on_machine();
  bool strains_ghosts() const;
  void choose_folds();
  void find_images();
  void find_atoms();
  void follow_types();
  int give_atoms(char *);
  double depth(const double *) const;
  void box(double *) const;
  double unit() const;
  void add_results(double, const double *, const double *, const double *);
  void add_atom_virials(bool, double **);
  void require_no_heat_flux();
  void require_all(int, const char *);
};

}    // namespace LAMMPS_NS

#endif
#endif
