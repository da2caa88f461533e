"""The pages that open over the screens: menu, form, plan, progress, help, quit. May not call the library."""
