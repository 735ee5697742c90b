"""Run `python -m simulator.fit`: fit the constants of `simulator/hardware/rates.py` and write them."""

from simulator.fit.rates import main

if __name__ == "__main__":
    main()
