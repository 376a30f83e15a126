from contextlib import contextmanager
@contextmanager
def agreeing_ranks():
    yield
