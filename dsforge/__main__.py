"""`python -m dsforge` is the same as `dsforge`."""

from dsforge.cli.main import main

if __name__ == "__main__":
    main()
