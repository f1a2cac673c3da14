import sys

if __name__ == 'configs':  # as files in a clone may call it
  from bertzoo_jax import configs

  sys.modules[__name__] = configs
