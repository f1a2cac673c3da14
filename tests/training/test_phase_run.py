"""Options that the compiler gets."""

from bertzoo_jax.training import phase_run as phase_runs


def test_the_compiler_gets_the_options_of_a_chip_unless_the_user_sets_others(monkeypatch):
  monkeypatch.delenv('LIBTPU_INIT_ARGS', raising=False)
  memory = {'xla_tpu_scoped_vmem_limit_kib': '32768'}
  windows = {'xla_jf_spmd_threshold_for_windowed_einsum_mib': '1000000'}
  assert (
    phase_runs.compiler_options('TPU v5 lite', False)
    == phase_runs.compiler_options('TPU v5', False)
    == memory
  )
  assert phase_runs.compiler_options('TPU v5 lite', True) == memory | windows
  assert phase_runs.compiler_options('TPU v4', True) == windows
  assert (
    phase_runs.compiler_options('TPU v4', False) == phase_runs.compiler_options('cpu', True) == {}
  )
  assert phase_runs.compiler_options('NVIDIA H200', True) == {'xla_gpu_enable_triton_gemm': 'False'}
  monkeypatch.setenv('XLA_FLAGS', '--xla_gpu_enable_triton_gemm=true')
  assert phase_runs.compiler_options('NVIDIA H200', True) == {}
  monkeypatch.setenv('LIBTPU_INIT_ARGS', '--a=1 --xla_tpu_scoped_vmem_limit_kib=65536')
  assert phase_runs.compiler_options('TPU v5 lite', True) == windows
