class Follower:
    def __init__(self, heard):
        pass

    def after(self, *a):
        pass

    def clear(self):
        pass


class HandmadeAttention:
    pass
