// Energy, forces and virial of a structure, by a potential that `torchmdx export` wrote. See docs/export.md.
//
//     ./evaluate potential.pt2 structure.txt [charge]
//
// The text file has the number of atoms, nine numbers of the cell (zeros: not periodic), then Z x y z of each atom, in Å.
#include <cmath>
#include <fstream>
#include <iostream>
#include <torch/torch.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

int main(int argc, char** argv) {
  if (argc < 3) return std::cerr << "usage: evaluate FILE.pt2 STRUCTURE [CHARGE]\n", 2;
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  const double cutoff = std::stod(model.get_metadata().at("cutoff"));
  torch::Device device(model.get_metadata().at("AOTI_DEVICE_KEY"));

  std::ifstream file(argv[2]);
  int64_t count = 0;
  double cell[3][3] = {};
  file >> count;
  for (auto& row : cell)
    for (double& entry : row) file >> entry;
  std::vector<int64_t> numbers(count);
  std::vector<std::array<double, 3>> places(count);
  for (int64_t i = 0; i < count; ++i) file >> numbers[i] >> places[i][0] >> places[i][1] >> places[i][2];
  if (!file || count < 1) return std::cerr << argv[2] << ": expected N, nine numbers of the cell, and N atoms\n", 2;

  // Images to search along each lattice vector: the cutoff over the distance between its faces.
  torch::Tensor box = torch::from_blob(cell, {3, 3}, torch::kFloat64).clone();
  const bool periodic = box.abs().max().item<double>() > 0;
  int most[3] = {0, 0, 0};
  if (periodic) {
    torch::Tensor heights = 1 / torch::linalg_inv(box).norm(2, 0);
    for (int k = 0; k < 3; ++k) most[k] = int(std::ceil(cutoff / heights[k].item<double>())) + 1;
  }

  // Every pair in both directions: vector = r_source - r_target + shift @ cell. Real programs use a cell list here.
  std::vector<int64_t> source, target, shifts;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < count; ++j)
      for (int a = -most[0]; a <= most[0]; ++a)
        for (int b = -most[1]; b <= most[1]; ++b)
          for (int c = -most[2]; c <= most[2]; ++c) {
            double square = 0;
            for (int k = 0; k < 3; ++k)
              square += std::pow(places[j][k] - places[i][k] + a * cell[0][k] + b * cell[1][k] + c * cell[2][k], 2);
            if ((i == j && !a && !b && !c) || square >= cutoff * cutoff) continue;
            source.push_back(j), target.push_back(i);
            shifts.insert(shifts.end(), {a, b, c});
          }

  const int64_t edges = source.size();
  torch::Tensor charge = torch::tensor(argc > 3 ? std::stod(argv[3]) : 0.0, torch::kFloat64);
  std::vector<torch::Tensor> inputs = {
      torch::from_blob(places.data(), {count, 3}, torch::kFloat64), torch::from_blob(numbers.data(), {count}, torch::kInt64),
      box, torch::from_blob(source.data(), {edges}, torch::kInt64), torch::from_blob(target.data(), {edges}, torch::kInt64),
      torch::from_blob(shifts.data(), {edges, 3}, torch::kInt64), charge};
  for (torch::Tensor& input : inputs) input = input.clone().to(device);

  std::vector<torch::Tensor> outputs = model.run(inputs);  // energies [N], forces [N,3], virial [3,3]
  std::cout.precision(10);
  std::cout << "energy " << outputs[0].sum().item<double>() << " eV\n";
  for (int64_t i = 0; i < count; ++i)
    std::cout << "force " << outputs[1][i][0].item<double>() << ' ' << outputs[1][i][1].item<double>() << ' '
              << outputs[1][i][2].item<double>() << " eV/Å\n";
  for (int k = 0; k < 3; ++k)
    std::cout << "virial " << outputs[2][k][0].item<double>() << ' ' << outputs[2][k][1].item<double>() << ' '
              << outputs[2][k][2].item<double>() << " eV\n";
}
