"""`python -m simulator.fit`: fits the constants of `simulator/hardware/rates.py` and writes them."""

from simulator.fit.rates import main

if __name__ == "__main__":
    main()
