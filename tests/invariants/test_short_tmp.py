from torture import torture


def test_short(tmp_path):
    torture(tmp_path, number=12, seed=5, steps=80)
