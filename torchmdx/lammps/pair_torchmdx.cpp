/* The pair style; see pair_torchmdx.h. */

#include "pair_torchmdx.h"

#include "atom.h"
#include "comm.h"
#include "compute.h"
#include "domain.h"
#include "error.h"
#include "fix.h"
#include "force.h"
#include "lammps.h"
#include "memory.h"
#include "modify.h"
#include "neighbor.h"
#include "torchmdx_exclusions.h"
#include "torchmdx_python.h"
#include "torchmdx_threads.h"
#include "universe.h"
#include "update.h"
#include "utils.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mpi.h>

using namespace LAMMPS_NS;

static Callbacks callbacks;
static bool registered = false;

extern "C" void torchmdx_register(const Callbacks *given)
{
  callbacks = *given;
  registered = true;
}

/* Asks Python for the callbacks. Returns why there are none, or an empty string. */
static std::string find_callbacks()
{
  if (registered) return "";
  const std::string reason = torchmdx::start_python();
  if (!reason.empty()) return reason;
  const auto address = std::to_string(reinterpret_cast<std::uintptr_t>(&torchmdx_register));
  const bool done = torchmdx::run_python("import torchmdx.lammps.session as _s; _s.register(" + address + "); del _s");
  return done && registered ? "" : "torchmdx could not be imported by " + torchmdx::python_name();
}

PairTorchmdx::PairTorchmdx(LAMMPS *lmp) : Pair(lmp)
{
  single_enable = restartinfo = respa_enable = 0;
  one_coeff = manybody_flag = no_virial_fdotr_compute = 1;
  centroidstressflag = CENTROID_AVAIL;
  comm_forward = 3;
}

PairTorchmdx::~PairTorchmdx()
{
  if (session >= 0) callbacks.close(session);
  if (allocated) {
    memory->destroy(setflag);
    memory->destroy(cutsq);
  }
}

/* Ends all processes with the message of the first that failed. */
void PairTorchmdx::require_all(int failed, const char *message)
{
  int mine = failed ? comm->me : comm->nprocs, first;
  MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, world);
  if (first == comm->nprocs) return;
  char text[MESSAGE_LENGTH];
  strncpy(text, message, MESSAGE_LENGTH - 1);
  text[MESSAGE_LENGTH - 1] = 0;
  MPI_Bcast(text, MESSAGE_LENGTH, MPI_CHAR, first, world);
  error->all(FLERR, std::string("torchmdx: ") + text);
}

/* This process's number on its machine, which chooses its GPU. Other partitions may be anywhere in their inputs, so that
   nothing may wait for them: theirs are taken to be on the same machine, and to come one after the other. */
int PairTorchmdx::place_on_machine()
{
  MPI_Comm local;
  int rank;
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  MPI_Comm_rank(local, &rank);
  MPI_Comm_free(&local);
  return universe->root_proc[universe->iworld] + rank;
}

void PairTorchmdx::settings(int narg, char **arg)
{
  if (narg < 1) error->all(FLERR, "pair_style torchmdx needs a MODEL: a file, or the name of a potential");
  const std::string reason = find_callbacks();
  require_all(!reason.empty(), reason.c_str());
  if (session >= 0) callbacks.close(session);
  session = -1;
  assigned = false;
  std::string arguments;
  for (int i = 0; i < narg; i++) arguments += std::string(i ? "\n" : "") + arg[i];
  char message[MESSAGE_LENGTH] = "";
  const int failed = callbacks.open(arguments.c_str(), place_on_machine(), &session, &reach, &cutoff, message);
  require_all(failed, message);
}

void PairTorchmdx::coeff(int narg, char **arg)
{
  const int types = atom->ntypes;
  if (narg != 2 + types || strcmp(arg[0], "*") != 0 || strcmp(arg[1], "*") != 0)
    error->all(FLERR, "pair_coeff of torchmdx needs * * and one element for each of the " + std::to_string(types) +
                          " atom types, or NULL");
  if (!allocated) {
    memory->create(setflag, types + 1, types + 1, "pair:setflag");
    memory->create(cutsq, types + 1, types + 1, "pair:cutsq");
    allocated = 1;
  }
  std::string symbols;
  for (int i = 1; i <= types; i++) symbols += std::string(i > 1 ? " " : "") + arg[1 + i];
  numbers.assign(types + 1, 0);
  char message[MESSAGE_LENGTH] = "";
  const int failed = callbacks.elements(session, symbols.c_str(), numbers.data() + 1, message);
  require_all(failed, message);
  for (int i = 1; i <= types; i++)
    for (int j = 1; j <= types; j++) setflag[i][j] = numbers[i] && numbers[j] ? 1 : 0;
}

void PairTorchmdx::init_style()
{
  const std::string units = update->unit_style;
  if (units != "metal" && units != "real")
    error->all(FLERR, "pair_style torchmdx needs units metal or real, got " + units);
  if (!force->newton_pair) error->all(FLERR, "pair_style torchmdx needs newton on");
  if (comm->style != Comm::BRICK && comm->style != Comm::TILED)
    error->all(FLERR, "pair_style torchmdx needs comm_style brick or tiled");
  if (comm->mode != Comm::SINGLE) error->all(FLERR, "pair_style torchmdx needs comm_modify mode single");
  if (neighbor->every != 1 || neighbor->delay != 0 || neighbor->dist_check != 1) {
    if (comm->me == 0)
      error->warning(FLERR, "torchmdx uses 'neigh_modify every 1 delay 0 check yes', so that no neighbour is missed");
    neighbor->every = neighbor->dist_check = 1;
    neighbor->delay = 0;
  }
  choose_folds();
  if (!(folded[0] && folded[1] && folded[2]))
    comm->cutghostuser = std::max(comm->cutghostuser, reach + neighbor->skin);
  assigned = false;
}

double PairTorchmdx::init_one(int, int)
{
  return cutoff;
}

/* Whether the input strains the atoms, ghosts among them, in a box that stays as it is, for a derivative. */
bool PairTorchmdx::strains_ghosts() const
{
  for (const auto &fix : modify->get_fix_list())
    if (strcmp(fix->style, "numdiff/virial") == 0) return true;
  for (const auto &compute : modify->get_compute_list())
    if (strcmp(compute->style, "born/matrix") == 0) return true;
  return false;
}

/* Directions that the potential treats as periodic itself: those that are not divided among processes. */
void PairTorchmdx::choose_folds()
{
  const bool tiled = comm->layout == Comm::LAYOUT_TILED, strained = strains_ghosts();
  for (int d = 0; d < 3; d++)
    folded[d] = domain->periodicity[d] && !strained && (comm->nprocs == 1 || (!tiled && comm->procgrid[d] == 1));
}

int PairTorchmdx::pack_forward_comm(int n, int *list, double *buffer, int across, int *pbc)
{
  for (int i = 0; i < n; i++)
    for (int d = 0; d < 3; d++) buffer[3 * i + d] = crossed[3 * list[i] + d] + (across ? pbc[d] : 0);
  return 3 * n;
}

void PairTorchmdx::unpack_forward_comm(int n, int first, double *buffer)
{
  std::copy(buffer, buffer + 3 * n, crossed.begin() + 3 * first);
}

/* Which ghosts are images across which boundaries: LAMMPS knows only while it communicates. */
void PairTorchmdx::find_images()
{
  crossed.assign(3 * (atom->nlocal + atom->nghost) + 3, 0.0);
  comm->forward_comm(this);
}

/* How far a point is outside of this process's part of the box, Å; at most its distance from it. */
double PairTorchmdx::depth(const double *x) const
{
  double place[3], largest = 0;
  const double *low = domain->sublo, *high = domain->subhi;
  const double *g = domain->h_inv;
  double slope[3] = {1, 1, 1};    // of the coordinates that divide the box
  if (domain->triclinic) {
    domain->x2lamda(const_cast<double *>(x), place);
    low = domain->sublo_lamda;
    high = domain->subhi_lamda;
    slope[0] = std::sqrt(g[0] * g[0] + g[5] * g[5] + g[4] * g[4]);
    slope[1] = std::sqrt(g[1] * g[1] + g[3] * g[3]);
    slope[2] = g[2];
  } else
    std::copy(x, x + 3, place);
  for (int d = 0; d < 3; d++)
    if (!folded[d]) largest = std::max(largest, std::max(low[d] - place[d], place[d] - high[d]) / slope[d]);
  return largest;
}

void PairTorchmdx::box(double *cell) const
{
  const double *h = domain->h;    // xx yy zz yz xz xy
  const double rows[9] = {h[0], 0, 0, h[5], h[1], 0, h[4], h[3], h[2]};
  std::copy(rows, rows + 9, cell);
}

/* After LAMMPS has built its lists: chooses the atoms to evaluate, sorted by hops, and gives them to Python. */
void PairTorchmdx::find_atoms()
{
  const std::string pairs = excluded(lmp, numbers);
  if (!pairs.empty())
    error->all(FLERR, "pair_style torchmdx evaluates all pairs of its atoms, got neigh_modify exclude " + pairs);
  choose_folds();
  find_images();
  const int nlocal = atom->nlocal, nall = nlocal + atom->nghost;
  const double far = reach + neighbor->skin;
  std::vector<std::vector<int>> ghosts(1);
  kept.clear();
  for (int i = 0; i < nlocal; i++)
    if (numbers[atom->type[i]] && takes_part(atom, i)) kept.push_back(i);
  num_owned = kept.size();
  for (int i = nlocal; i < nall; i++) {
    if (!numbers[atom->type[i]] || !takes_part(atom, i)) continue;
    bool other_image = false;
    for (int d = 0; d < 3; d++) other_image |= folded[d] && crossed[3 * i + d] != 0;
    const double away = other_image ? 0 : depth(atom->x[i]);
    if (other_image || away > far) continue;
    // Until lists are built again, two atoms may approach each other by the skin.
    const std::size_t hops = std::max(1, (int) std::ceil((away - neighbor->skin) / cutoff));
    if (ghosts.size() <= hops) ghosts.resize(hops + 1);
    ghosts[hops].push_back(i);
  }
  std::vector<int> hops(num_owned, 0);
  for (std::size_t h = 1; h < ghosts.size(); h++) {
    kept.insert(kept.end(), ghosts[h].begin(), ghosts[h].end());
    hops.insert(hops.end(), ghosts[h].size(), (int) h);
  }
  hops.push_back(0);    // so that there is an address without atoms too
  kept_hops = hops;
  types.assign(atom->type, atom->type + nall);
  long long own = num_owned;
  MPI_Allreduce(&own, &num_total, 1, MPI_LONG_LONG, MPI_SUM, world);
  char message[MESSAGE_LENGTH] = "";
  const int failed = give_atoms(message);
  require_all(failed, message);
  assigned = true;
}

/* Gives the chosen atoms to Python. Needs no other process. */
int PairTorchmdx::give_atoms(char *message)
{
  const int n = kept.size();
  std::vector<int> z(n + 1);
  std::vector<double> x(3 * n + 3);
  for (int k = 0; k < n; k++) {
    z[k] = numbers[atom->type[kept[k]]];
    std::copy(atom->x[kept[k]], atom->x[kept[k]] + 3, &x[3 * k]);
  }
  const int periodic[3] = {folded[0], folded[1], folded[2]};
  double cell[9];
  box(cell);
  return callbacks.assign(session, n, num_owned, num_total, z.data(), kept_hops.data(), periodic, cell, x.data(),
                          &inputs, message);
}

/* Monte Carlo swaps of types need no new lists in LAMMPS, but this potential has other elements then. */
void PairTorchmdx::follow_types()
{
  if (std::equal(types.begin(), types.end(), atom->type)) return;
  for (std::size_t i = 0; i < types.size(); i++)
    if (!numbers[types[i]] != !numbers[atom->type[i]])
      error->one(FLERR, "pair_style torchmdx can't follow an atom whose type changes between one of its elements and "
                        "NULL while lists of neighbours stay as they are");
  types.assign(atom->type, atom->type + types.size());
  char message[MESSAGE_LENGTH] = "";
  if (give_atoms(message)) error->one(FLERR, std::string("torchmdx: ") + message);
}

void PairTorchmdx::compute(int eflag, int vflag)
{
  ev_init(eflag, vflag);
  if (vflag_atom) require_no_heat_flux();
  if (!assigned || neighbor->ago == 0)
    find_atoms();
  else
    follow_types();
  if (!num_owned) return;
  torchmdx::in_parts(kept.size(), comm->nthreads, [this](std::size_t first, std::size_t last) {
    for (std::size_t k = first; k < last; k++) std::copy(atom->x[kept[k]], atom->x[kept[k]] + 3, inputs + 3 * k);
  });
  double cell[9], energy = 0, virial_tensor[9], *energies = nullptr, *forces = nullptr;
  box(cell);
  char message[MESSAGE_LENGTH] = "";
  if (callbacks.evaluate(session, cell, &energy, &energies, &forces, virial_tensor, message))
    error->one(FLERR, std::string("torchmdx: ") + message);
  add_results(energy, energies, forces, virial_tensor);
  if (vflag_atom) add_atom_virials(false, vatom);
  if (cvflag_atom) add_atom_virials(true, cvatom);
}

/* One eV in LAMMPS's units. */
double PairTorchmdx::unit() const
{
  const bool real = strcmp(update->unit_style, "real") == 0;
  return real ? utils::get_conversion_factor(utils::ENERGY, utils::METAL2REAL) : 1.0;
}

void PairTorchmdx::add_results(double energy, const double *energies, const double *forces, const double *tensor)
{
  const double unit = this->unit();
  torchmdx::in_parts(kept.size(), comm->nthreads, [&](std::size_t first, std::size_t last) {
    for (std::size_t k = first; k < last; k++)
      for (int d = 0; d < 3; d++) atom->f[kept[k]][d] += unit * forces[3 * k + d];
  });
  if (eflag_global) eng_vdwl += unit * energy;
  if (eflag_atom)
    for (int k = 0; k < num_owned; k++) eatom[kept[k]] += unit * energies[k];
  if (vflag_global) {
    const int of[6] = {0, 4, 8, 1, 2, 5};    // xx yy zz xy xz yz
    for (int k = 0; k < 6; k++) virial[k] -= unit * tensor[of[k]];
  }
}

/* Virials of atoms, ghosts included, in the order of stress/atom (6 of them) or of centroid/stress/atom (9). */
void PairTorchmdx::add_atom_virials(bool flux, double **to)
{
  double *found = nullptr;
  char message[MESSAGE_LENGTH] = "";
  if (callbacks.atom_virials(session, flux, &found, message)) error->one(FLERR, std::string("torchmdx: ") + message);
  const int of[9] = {0, 4, 8, 1, 2, 5, 3, 6, 7};    // xx yy zz xy xz yz yx zx zy
  for (std::size_t k = 0; k < kept.size(); k++) {
    const double *w = found + 9 * k;
    for (int c = 0; c < 3; c++) to[kept[k]][c] -= unit() * w[of[c]];
    for (int c = 3; c < (flux ? 9 : 6); c++)
      to[kept[k]][c] -= unit() * (flux ? w[of[c]] : 0.5 * (w[of[c]] + w[of[c + 3]]));
  }
}

/* `compute heat/flux` with virials of stress/atom would be wrong, and it does not tell which ones it takes. */
void PairTorchmdx::require_no_heat_flux()
{
  for (const auto &compute : modify->get_compute_list())
    if (strcmp(compute->style, "heat/flux") == 0)
      error->all(FLERR, "pair_style torchmdx needs compute centroid/stress/atom for compute heat/flux, and none of "
                        "style stress/atom in the same input: an atom's energy depends on neighbours of neighbours");
}

/* The computes of the package TALLY add up what a style tells of each pair; without it they would find nothing. */
void PairTorchmdx::add_tally_callback(Compute *compute)
{
  error->all(FLERR, "pair_style torchmdx has no energies and forces of pairs of atoms, which compute " +
                        std::string(compute->style) + " needs");
}

static void *create(void *lammps)
{
  return new PairTorchmdx((LAMMPS *) lammps);
}

extern "C" void lammpsplugin_init(void *lammps, void *handle, void *add)
{
  lammpsplugin_t plugin;
  memset(&plugin, 0, sizeof plugin);
  plugin.version = ((LAMMPS *) lammps)->version;    // it was compiled for this one
  plugin.style = "pair";
  plugin.name = "torchmdx";
  plugin.info = "neural-network potentials of torchmdx";
  plugin.author = "The torchmdx developers";
  plugin.creator.v1 = &create;
  plugin.handle = handle;
  ((lammpsplugin_regfunc) add)(&plugin, lammps);
}
